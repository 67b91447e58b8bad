"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const at = (id) => document.getElementById(id);
  const form = at("controls"), out = at("out"), parts = at("parts"), more = at("more"), hero = at("hero"), machines = at("machines");
  const { defaults } = JSON.parse(at("json-controls").textContent);
  const SETTLE = 120; // ms without a change before anything is asked

  // --- the controls as a query, and a query as the controls ---
  const query = () => {
    const found = new URLSearchParams();
    for (const [name, text] of new FormData(form)) {
      if (name === "set") text.split("\n").map((line) => line.trim()).filter(Boolean).forEach((line) => found.append("set", line));
      else if (text.trim() && (name === "workload" || name === "hardware" || text.trim() !== defaults[name])) found.set(name, text.trim());
    }
    return found.toString();
  };
  const put = (text) => {
    const given = new URLSearchParams(text);
    for (const field of all("[name]", form)) {
      const value = field.name === "set" ? given.getAll("set").join("\n") : given.get(field.name) ?? defaults[field.name] ?? "";
      if (field.tagName === "SELECT" && ![...field.options].some((option) => option.value === value)) field.add(new Option(value, value));
      field.value = value;
      if (given.has(field.name)) field.closest("details").open = true;
    }
    all("input[type=range]", form).forEach(follow);
  };

  // --- sliders: each follows its field, and writes into it ---
  const stops = (slider) => slider.dataset.values.split(" ").map(Number);
  const follow = (slider) => {
    const field = at(slider.dataset.for), value = parseFloat(field.value || field.placeholder);
    const distance = (stop) => Math.abs(Math.log(stop / value));
    if (value > 0) slider.value = stops(slider).reduce((best, stop, index, of) => (distance(stop) < distance(of[best]) ? index : best), 0);
    slider.setAttribute("aria-valuetext", field.value || field.placeholder || "as described");
  };
  const describe = (described, fixed) => {
    for (const field of all("[name]", form)) {
      const why = fixed[field.name];
      for (const each of [field, ...all(`[data-for="${field.id}"]`, form)]) { each.disabled = !!why && !field.value; each.title = why ?? ""; }
      const known = described[field.name];
      if (known === undefined) continue;
      if (field.tagName === "SELECT") { const empty = field.querySelector("[data-empty]"); if (empty) empty.textContent = `as described: ${[...field.options].find((option) => option.value === known)?.textContent ?? known}`; }
      else field.placeholder = known;
    }
    all("input[type=range]", form).forEach(follow);
  };

  // --- results ---
  const state = at("state");
  const says = (text, busy) => { state.textContent = text; state.classList.toggle("busy", busy); out.setAttribute("aria-busy", busy); };
  const fill = (place, html) => {
    const open = new Set(all("details[open]>summary", place).map((summary) => summary.textContent));
    place.innerHTML = html;
    all("details>summary", place).forEach((summary) => { if (open.has(summary.textContent)) summary.parentElement.open = true; });
    window.stallsim.wire(place);
  };
  const problems = (view) => {
    const box = at("problems");
    box.replaceChildren();
    if (!view.problems.length) return;
    const note = Object.assign(document.createElement("div"), { className: "notes" });
    for (const problem of view.problems) note.append(Object.assign(document.createElement("p"), { textContent: problem }));
    for (const remedy of view.remedies ?? []) {
      const button = Object.assign(document.createElement("button"), { type: "button", textContent: `Try ${remedy.text}` });
      button.addEventListener("click", () => { put(remedy.query); ask(); });
      note.append(button);
    }
    box.append(note);
  };
  const show = (view) => {
    describe(view.described ?? {}, view.fixed ?? {});
    problems(view);
    const ran = !view.problems.length;
    [hero, parts, more].forEach((place) => place.classList.toggle("stale", !ran));
    hero.hidden = !ran && !parts.childElementCount;
    if (view.command) at("command").textContent = view.command;
    at("keep").hidden = !ran;
    const brief = at("brief");
    brief.hidden = false;
    brief.textContent = ran ? view.brief : "This cannot run: see why";
    brief.href = ran ? "#result" : "#problems";
    at("said").textContent = ran ? `${view.brief}. ${view.verdict}` : "";
    if (!ran) return;
    fill(hero, view.result);
    fill(parts, view.parts);
    fill(more, view.more);
    document.title = `${view.title}, stallsim`;
  };

  // --- asking: the newest question only; what is under way for an older one is given up ---
  let asked = null, compared = "", settling = 0;
  const common = (text) => { const kept = new URLSearchParams(text); ["nic", "price"].forEach((name) => kept.delete(name)); return kept.toString(); };
  const ask = async () => {
    clearTimeout(settling);
    asked?.abort();
    const mine = asked = new AbortController(), text = query(), began = performance.now();
    history.replaceState(null, "", `?${text}`);
    at("address").textContent = location.href;
    all("[data-file]").forEach((link) => { link.href = `file/${link.dataset.file}?${text}`; });
    says("Computing the run …", true);
    try {
      const shown = fetch(`view?${text}`, { signal: mine.signal }).then((answer) => answer.json()).then((view) => {
        show(view);
        says(`Computed in ${((performance.now() - began) / 1000).toFixed(2)} s`, false);
      });
      await Promise.all([shown, common(text) !== compared && compare(text, mine.signal, shown)]);
    } catch (error) {
      if (mine.signal.aborted) return;
      machines.classList.remove("busy");
      at("machines-parts").classList.remove("stale");
      says(`No answer (${error.message}). Is the server still running?`, false);
    }
  };
  const compare = async (text, signal, shown) => {
    const progress = at("machines-state");
    compared = "";
    machines.classList.add("busy");
    at("machines-parts").classList.add("stale");
    progress.textContent = "Comparing machines …";
    const answer = await fetch(`machines?${text}`, { signal });
    const lines = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "", seen = null;
    for (;;) {
      const { value, done } = await lines.read();
      if (done) break;
      rest += value;
      const whole = rest.split("\n");
      rest = whole.pop();
      if (!whole.length) continue;
      seen = JSON.parse(whole.at(-1));
      if (seen.problems) await shown; // says them too
      if (signal.aborted) return;
      at("machines-verdict").textContent = seen.verdict ?? "";
      at("machines-command").textContent = seen.command ?? "";
      if (seen.html !== undefined || !seen.of) fill(at("machines-parts"), seen.html ?? "");
      at("machines-parts").classList.remove("stale");
      progress.textContent = seen.problems ? (at("problems").childElementCount ? "" : seen.problems.join(" ")) : seen.done < seen.of ? `${seen.done} of ${seen.of} machines${seen.complete ? "; the Pareto front is complete" : ""} …` : `${seen.of} machines with the same number of nodes each, at catalog prices`;
    }
    machines.classList.remove("busy");
    compared = common(text);
  };
  const soon = () => { clearTimeout(settling); settling = setTimeout(ask, SETTLE); };

  form.addEventListener("input", (event) => {
    const slider = event.target;
    if (slider.type === "range") { at(slider.dataset.for).value = stops(slider)[slider.value]; follow(slider); }
    else all(`[data-for="${slider.id}"]`, form).forEach(follow);
    soon();
  });
  form.addEventListener("submit", (event) => { event.preventDefault(); ask(); });
  form.addEventListener("reset", (event) => { event.preventDefault(); put(""); ask(); });
  addEventListener("popstate", () => { put(location.search); ask(); });

  // --- keeping it ---
  all("[data-copy]").forEach((button) => button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(at(button.dataset.copy).textContent);
    at("said").textContent = "Copied";
    const before = button.textContent;
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = before; }, 1200);
  }));
  // Perfetto's way for other pages: a message to its window, repeated until it answers (perfetto.dev/docs/visualization/deep-linking-to-perfetto-ui).
  at("perfetto").addEventListener("click", async () => {
    const place = "https://ui.perfetto.dev", tab = window.open(place);
    if (!tab) return;
    const buffer = await (await fetch(`file/trace.json.gz?${query()}`)).arrayBuffer();
    const call = setInterval(() => tab.postMessage("PING", place), 100);
    const heard = (event) => {
      if (event.source !== tab || event.data !== "PONG") return;
      clearInterval(call);
      removeEventListener("message", heard);
      tab.postMessage({ perfetto: { buffer, title: document.title, fileName: "trace.json.gz" } }, place);
    };
    addEventListener("message", heard);
    setTimeout(() => clearInterval(call), 60000);
  });

  if (matchMedia("(max-width:60rem)").matches) all("#controls>details").slice(2).forEach((group) => { group.open = false; });
  put(location.search);
  ask();
})();
