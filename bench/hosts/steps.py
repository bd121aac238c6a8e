#!/usr/bin/env python3
"""Training steps between hosts: plans of ours beside PyTorch's DDP, FSDP2 and HSDP over Gloo, and DeepSpeed 3.

Makes hosts on this machine (root), whose links carry a rate; all contenders train the model of bench/peers, started by
torchrun, and take their turns in every round. A link's own time is that of the bytes that a host sends in a step, by its
interface, at the rate of the link: what a run of more steps sends more.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import sys

from hosts import Hosts

PEER = pathlib.Path(__file__).resolve().parent.parent / "peers" / "peer.py"
PORT = 29519
SHAPES = {
    "deep": dict(layers=8, dim=256, heads=4, ffn=704, vocab=4096, seq=128, batch=2),
    "wide": dict(layers=2, dim=512, heads=8, ffn=1408, vocab=4096, seq=128, batch=2),
}
BITS = {"gbit": 1e9, "mbit": 1e6}
MORE = 5  # steps of a second run


def contenders(ranks_per_host: int, deepspeed: bool) -> dict[str, list[str]]:
    """Names, and what each adds to a command: of ours a plan, of the peers a mode."""
    shard = [f"--shard={ranks_per_host}"]
    ours = {
        "zero3": ["--plan=zero3"],
        "zero3, one at a time": ["--plan=zero3", "--overlap=1"],
        "zero3, kept": ["--plan=zero3", *shard, "--keep=host"],
        "zero3, kept, 16-bit sums": ["--plan=zero3", *shard, "--keep=host", "--reduce-in=bf16-codes"],
        "hybrid": ["--plan=hybrid", *shard],
        "hybrid, 16-bit sums": ["--plan=hybrid", *shard, "--reduce-in=bf16-codes"],
        "zeropp": ["--plan=zeropp", *shard],
        "sdp4bit": ["--plan=sdp4bit", *shard],
    }
    peers = ["ddp", "fsdp2", *(["hsdp"] if ranks_per_host > 1 else []), *(["deepspeed3"] if deepspeed else [])]
    return {**ours, **{name: [f"--mode={name}"] for name in peers}}


def train(made: Hosts, options: argparse.Namespace, ranks_per_host: int, words: list[str]) -> dict[str, float]:
    """Seconds of a step, and all bytes that the busiest host sent."""
    ours = words[0].startswith("--plan")
    command = ["--no-python", str(options.build / "bench" / "peers_ours")] if ours else [str(PEER)]
    before = [made.sent(host) for host in range(made.count)]
    variables = {"GLOO_SOCKET_IFNAME": "link0", "DS_ACCELERATOR": "cpu"}
    text = made.torchrun(ranks_per_host, PORT, [*command, *words], variables)
    line = next(line for line in text.splitlines() if line.startswith("RESULT "))
    seconds = statistics.median(json.loads(line.removeprefix("RESULT "))["step_seconds"])
    return {"seconds": seconds, "bytes": max(made.sent(host) - before[host] for host in range(made.count))}


def measure(options: argparse.Namespace, rate: str, layout: tuple[int, int], shape: str, dtype: str) -> None:
    hosts, here = layout
    sizes = [f"--{name}={value}" for name, value in SHAPES[shape].items()]
    times = [f"--steps={options.steps}", f"--warmup={options.warmup}", f"--dtype={dtype}"]
    more = [f"--steps={options.steps + MORE}", *times[1:]]
    rows = contenders(here, options.deepspeed)
    if options.only:
        rows = {name: words for name, words in rows.items() if name in [*options.only, "fsdp2"]}
    figures: dict[str, list[dict[str, float]]] = {name: [] for name in rows}
    with Hosts(hosts, rate) as made:
        for turn in range(options.rounds):
            names = list(rows)
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                figures[name].append(train(made, options, here, [*rows[name], *sizes, *times]))
    with Hosts(hosts) as made:
        computing = {name: train(made, options, here, [*rows[name], *sizes, *times]) for name in rows}
        longer = {name: train(made, options, here, [*rows[name], *sizes, *more]) for name in rows}
    digits = len(rate) - len(rate.lstrip("0123456789"))
    speed = float(rate[:digits]) * BITS[rate[digits:]] / 8
    peer = statistics.median(each["seconds"] for each in figures["fsdp2"])
    for name, each in figures.items():
        seconds = statistics.median(one["seconds"] for one in each)
        link = (longer[name]["bytes"] - computing[name]["bytes"]) / MORE / speed
        larger = max(link, computing[name]["seconds"])
        cells = [rate, f"{hosts} x {here}", shape, dtype, name, f"{seconds:.3f}", f"{computing[name]['seconds']:.3f}"]
        print(f"| {' | '.join(cells)} | {link:.3f} | {seconds / larger:.2f} | {seconds / peer:.2f} |", flush=True)


def layout_of(text: str) -> tuple[int, int]:
    hosts, here = text.split("x")
    return int(hosts), int(here)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/release").resolve())
    parser.add_argument("--rates", nargs="+", default=["200mbit", "1gbit"])
    parser.add_argument("--layouts", nargs="+", type=layout_of, default=[(2, 2), (4, 1)])
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=SHAPES)
    parser.add_argument("--dtypes", nargs="+", default=["fp32", "bf16"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--only", nargs="+", metavar="CONTENDER", help="these, and fsdp2")
    parser.add_argument("--deepspeed", action="store_true", help="DeepSpeed 3, too: PATH has a torchrun that has it")
    options = parser.parse_args()
    print("| link | hosts x ranks | shape | dtype | contender | s a step | without limit | link's own | of the larger |"
          " of FSDP2 |\n" + "|---" * 10 + "|")  # fmt: skip
    for rate in options.rates:
        for layout in options.layouts:
            for shape in options.shapes:
                for dtype in options.dtypes:
                    measure(options, rate, layout, shape, dtype)
    return 0


if __name__ == "__main__":
    sys.exit(main())
