"""Play sets of flows through SimGrid; run by the system's own interpreter, for which Debian's python3-simgrid is built.

Reads from standard input a JSON list of cases ``{"capacity": {link: bytes/s}, "flows": [{"links": [...], "volume": bytes,
"start": s}]}``; a link named twice is crossed twice. Writes a JSON list of lists of completion times
(s). Cases share no link, so one simulation holds them all.
"""

import json
import sys


def play(cases):
    """Return when each flow of each of *cases* ends."""
    from simgrid import Actor, Comm, Engine, LinkInRoute, NetZone, this_actor

    def send(source, target, flow, times, place):
        this_actor.sleep_for(flow["start"])
        Comm.sendto(source, target, flow["volume"])
        times[place] = Engine.clock

    # plain max-min: no factor on bandwidth, no TCP window, no acknowledgments on the way back
    engine = Engine(["flows", "--cfg=network/model:CM02", "--cfg=network/TCP-gamma:0", "--cfg=network/crosstraffic:0"])
    zone = NetZone.create_full_zone("flows")
    times = [[None] * len(case["flows"]) for case in cases]
    for number, case in enumerate(cases):
        links = {
            name: zone.create_link(f"{number}.{name}", bandwidth).set_latency(0).seal() for name, bandwidth in case["capacity"].items()
        }
        for place, flow in enumerate(case["flows"]):
            source, target = (zone.create_host(f"{number}.{place}.{end}", 1e9) for end in ("source", "target"))
            zone.add_route(source.netpoint, target.netpoint, None, None, [LinkInRoute(links[name]) for name in flow["links"]], False)
            Actor.create(f"{number}.{place}", source, send, source, target, flow, times[number], place)
    zone.seal()
    engine.run()
    return times


if __name__ == "__main__":
    json.dump(play(json.load(sys.stdin)), sys.stdout)
