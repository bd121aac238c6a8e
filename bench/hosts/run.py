#!/usr/bin/env python3
"""What crosses between hosts: the library's own streams beside Gloo and a plain stream, and training steps over both.

Makes two hosts on this machine (root), whose links carry a rate. All contenders take their turns in every round.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import statistics
import sys

from hosts import Hosts

PLAIN, OURS, GLOO = "a plain stream", "own streams", "Gloo"
STREAMS = {PLAIN: ("plain", "auto"), OURS: ("zero", "auto"), GLOO: ("zero", "gloo")}
PORT = 29517


def stream(made: Hosts, build: pathlib.Path, how: str, mib: int, turns: int) -> dict[str, float]:
    mode, transport = STREAMS[how]
    variables = [
        {"RANK": str(host), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "ZERO_TRANSPORT": transport,
         "MASTER_ADDR": made.address(0), "MASTER_PORT": str(PORT)}
        for host in range(2)
    ]  # fmt: skip
    command = [str(build / "bench" / "stream"), mode, str(mib), str(turns)]
    return json.loads(made.outputs([command] * 2, variables))


def step(made: Hosts, build: pathlib.Path, transport: str, settings: list[str], steps: int) -> float:
    """Its seconds."""
    train = ["--no-python", str(build / "zero"), "train", "--steps", str(steps), *settings]
    text = made.torchrun(2, PORT, train, {"ZERO_TRANSPORT": transport})
    row = re.search(r"s/step, predicted.*\n(.*)", text)
    return float(row[1].split()[2])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/release").resolve())
    parser.add_argument("--rates", nargs="+", default=["1gbit", "200mbit"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--steps", type=int, default=8)
    options = parser.parse_args()
    congestion = pathlib.Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
    print(f"medians of {options.rounds} rounds; congestion control: {congestion}\n")
    print("| link | by | MB/s | of a plain stream | processor, ns a byte |", "|---|---|---|---|---|", sep="\n")
    steps = {}
    for rate in options.rates:
        with Hosts(2, rate) as made:
            figures = {how: [] for how in STREAMS}
            for _ in range(options.rounds):
                for how in STREAMS:
                    figures[how].append(stream(made, options.build, how, options.mib, options.turns))
                for precision in ("fp32", "bf16"):
                    settings = ["--model", "tiny", "--plan", "zero3", "--precision", precision]
                    for transport in ("auto", "gloo"):
                        taken = step(made, options.build, transport, settings, options.steps)
                        steps.setdefault((rate, precision, transport), []).append(taken)
        plain = [each["seconds"] for each in figures[PLAIN]]
        for how, each in figures.items():
            rates = [row["bytes"] / row["seconds"] / 1e6 for row in each]
            share = [a / row["seconds"] for a, row in zip(plain, each)]
            cost = [1e9 * row["processor"] / row["bytes"] for row in each]
            median = statistics.median
            print(f"| {rate} | {how} | {median(rates):.1f} | {median(share):.3f} | {median(cost):.2f} |")
    print("\n| link | precision | s a step, two levels with own streams | Gloo between all ranks | ratio |")
    print("|---|---|---|---|---|")
    for rate in options.rates:
        for precision in ("fp32", "bf16"):
            own, gloo = (steps[rate, precision, transport] for transport in ("auto", "gloo"))
            ratio = statistics.median(a / b for a, b in zip(own, gloo))
            print(f"| {rate} | {precision} | {statistics.median(own):.3f} | {statistics.median(gloo):.3f} | {ratio:.3f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
