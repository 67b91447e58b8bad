"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const tip = document.getElementById("tip"), said = document.getElementById("said");

  // --- theme: system, light, dark ---
  const theme = document.getElementById("theme");
  const themes = ["system", "light", "dark"];
  const wear = (name) => {
    if (name === "system") delete document.documentElement.dataset.theme; else document.documentElement.dataset.theme = name;
    theme.textContent = "Theme: " + name;
    theme.dataset.now = name;
    try { localStorage.setItem("stallsim-theme", name); } catch { /* a page from a file may have no storage */ }
  };
  let stored = null;
  try { stored = localStorage.getItem("stallsim-theme"); } catch { /* as above */ }
  theme.hidden = false;
  wear(themes.includes(stored) ? stored : "system");
  theme.addEventListener("click", () => wear(themes[(themes.indexOf(theme.dataset.now) + 1) % themes.length]));

  // --- what a mark says: pointed at, or reached with arrow keys ---
  const place = (x, y) => {
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.max(6, Math.min(x + 14, innerWidth - box.width - 6)) + "px";
    tip.style.top = (y + 18 + box.height > innerHeight ? Math.max(6, y - box.height - 12) : y + 18) + "px";
  };
  const say = (mark, x, y) => {
    tip.textContent = mark.dataset.tip;
    tip.hidden = false;
    place(x, y);
  };
  const hush = () => { tip.hidden = true; };
  document.addEventListener("pointermove", (event) => {
    const mark = event.target.closest?.("[data-tip]");
    if (mark) say(mark, event.clientX, event.clientY); else hush();
  });
  document.addEventListener("pointerdown", (event) => {
    const mark = event.pointerType === "touch" && event.target.closest?.("[data-tip]");
    if (mark) say(mark, event.clientX, event.clientY);
  });
  document.addEventListener("pointerleave", hush);
  addEventListener("scroll", hush, { passive: true });

  const marksOf = (chart) => all("[data-tip]", chart).filter((mark) => mark.getClientRects().length);
  const reach = (chart, step) => {
    const marks = marksOf(chart);
    if (!marks.length) return;
    const now = marks.findIndex((mark) => mark.classList.contains("at"));
    const next = now < 0 ? (step > 0 ? 0 : marks.length - 1) : Math.max(0, Math.min(marks.length - 1, now + step));
    marks.forEach((mark) => mark.classList.remove("at"));
    const mark = marks[next];
    mark.classList.add("at");
    mark.scrollIntoView({ block: "nearest", inline: "nearest" });
    const box = mark.getBoundingClientRect();
    say(mark, box.left + Math.min(box.width / 2, 200), box.bottom - 12);
    said.textContent = mark.dataset.tip.replaceAll("\n", ", ");
  };
  const wireMarks = (root) => all(".marks", root).forEach((chart) => {
    chart.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -1e9, End: 1e9 }[event.key];
      if (step) { event.preventDefault(); reach(chart, step); }
      if (event.key === "Escape") hush();
    });
    chart.addEventListener("blur", () => { marksOf(chart).forEach((mark) => mark.classList.remove("at")); hush(); });
  });

  // --- timeline: the canvas is stretched, the scroller moves over it ---
  const seconds = (time) => {
    const units = [[1, "s"], [1e-3, "ms"], [1e-6, "us"]];
    const [scale, unit] = units.find(([size]) => time >= size * 0.999) ?? units[2];
    return time === 0 ? "0" : `${+(time / scale).toPrecision(4)} ${unit}`;
  };
  const rounded = (step) => {
    const power = 10 ** Math.floor(Math.log10(step));
    return [1, 2, 5, 10].map((factor) => factor * power).find((value) => value >= step * 0.999999);
  };
  const wireTimelines = (root) => all(".timeline", root).forEach((figure) => {
    const scroller = figure.querySelector(".scroller"), canvas = figure.querySelector(".canvas");
    const axis = canvas.querySelector(".axis"), span = +canvas.dataset.span;
    let zoom = 1;
    const draw = () => {
      const step = rounded(span / zoom / Math.max(2, scroller.clientWidth / 110));
      const ticks = [];
      for (let count = 0; count * step < span * (1 - 0.03 / zoom); count += 1) {
        const tick = document.createElement("span");
        tick.textContent = seconds(count * step);
        tick.style.left = `${100 * count * step / span}%`;
        ticks.push(tick);
      }
      axis.replaceChildren(...ticks);
    };
    const look = (start, width) => {
      zoom = Math.max(1, Math.min(400, 1 / width));
      canvas.style.setProperty("--zoom", zoom);
      draw();
      scroller.scrollLeft = start * scroller.clientWidth * zoom;
    };
    const by = (factor) => {
      const middle = (scroller.scrollLeft + scroller.clientWidth / 2) / (scroller.clientWidth * zoom);
      const width = 1 / Math.max(1, Math.min(400, zoom * factor));
      look(Math.max(0, middle - width / 2), width);
    };
    const zooms = { in: () => by(2), out: () => by(0.5), all: () => look(0, 1) };
    all("[data-zoom]", figure).forEach((button) => button.addEventListener("click", zooms[button.dataset.zoom]));
    canvas.addEventListener("keydown", (event) => {
      const how = { "+": "in", "=": "in", "-": "out", "0": "all" }[event.key];
      if (how) { event.preventDefault(); zooms[how](); }
    });
    let brush = null, from = 0;
    const at = (event) => { const box = canvas.getBoundingClientRect(); return Math.max(0, Math.min(1, (event.clientX - box.left) / box.width)); };
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || event.pointerType === "touch") return;
      from = at(event);
      brush = Object.assign(document.createElement("div"), { className: "brush" });
      canvas.append(brush);
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!brush) return;
      const to = at(event);
      brush.style.left = `${100 * Math.min(from, to)}%`;
      brush.style.width = `${100 * Math.abs(to - from)}%`;
    });
    const drop = (event) => {
      if (!brush) return;
      brush.remove();
      brush = null;
      const to = at(event);
      if (event.type === "pointerup" && Math.abs(to - from) * scroller.clientWidth * zoom > 8) look(Math.min(from, to), Math.abs(to - from));
    };
    canvas.addEventListener("pointerup", drop);
    canvas.addEventListener("pointercancel", drop);
    canvas.addEventListener("dblclick", zooms.all);
    figure.querySelector("[data-ranks]")?.addEventListener("change", (event) =>
      all("[data-rank]", figure).forEach((lanes) => { lanes.hidden = lanes.dataset.rank !== event.target.value; }));
    const again = () => { if (figure.isConnected) draw(); else removeEventListener("resize", again); };
    addEventListener("resize", again);
    draw();
  });

  // --- tables: a click on a head sorts ---
  const wireTables = (root) => all("table.sortable", root).forEach((table) => {
    const heads = all("thead th", table), body = table.tBodies[0];
    const value = (row, column) => {
      const cell = row.cells[column], figure = cell.querySelector("data");
      return figure ? +figure.value : cell.dataset.sort !== undefined ? +cell.dataset.sort : cell.textContent.trim();
    };
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const order = (one, other) => (typeof one === "number" && typeof other === "number" ? one - other : `${one}`.localeCompare(`${other}`));
        const rows = [...body.rows].sort((one, other) => order(value(one, column), value(other, column)) * (down ? -1 : 1));
        body.append(...rows);
      });
    });
  });

  // --- figures to keep: JSON as --json prints it, and each table as CSV ---
  const save = (name, type, text) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };
  const wireDownloads = (root) => all("[data-download]", root).forEach((button) => button.addEventListener("click", () => {
    const name = button.dataset.download;
    save(`${name}.json`, "application/json", `${JSON.stringify(JSON.parse(document.getElementById(`json-${name}`).textContent), null, 2)}\n`);
  }));
  const wireCsv = (root) => all("table.sortable", root).forEach((table, number) => {
    const cell = (element) => {
      const figure = element.querySelector("data"), text = figure ? figure.value : element.textContent.trim();
      const safe = /^[=+\-@\t\r]/.test(text) && isNaN(text) ? `'${text}` : text;
      return /[",\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
    };
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "Download CSV";
    button.addEventListener("click", () =>
      save(`table-${number + 1}.csv`, "text/csv", [...table.rows].map((row) => `${[...row.cells].map(cell).join(",")}\n`).join("")));
    (table.closest(".table") ?? table).after(button);
  });

  // --- what works on this page, and on parts that a script puts there later ---
  const wire = (root) => [wireMarks, wireTimelines, wireTables, wireDownloads, wireCsv].forEach((some) => some(root));
  wire(document);
  window.stallsim = { wire };

  // --- paper shows what is folded away ---
  addEventListener("beforeprint", () => all("section:not(#document) details").filter((fold) => !fold.closest(".sources")).forEach((fold) => { fold.open = true; }));
})();
