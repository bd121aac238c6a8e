#!/usr/bin/env python3
"""Predicted against measured: peaks of memory and seconds of a step, for several settings under every plan.

Measures a profile of the machine first, then trains every setting under every plan, round by round, and compares the
middle of the rounds with what was predicted. Prints a table; --json writes all figures.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SETTINGS = [
    "--model micro --batch 4 --seq 128",
    "--model micro --batch 4 --seq 64 --precision bf16",
    "--model micro --batch 2 --seq 128 --accumulate 4",
    "--model tiny --batch 2 --seq 128",
    "--model tiny --batch 2 --seq 256 --precision bf16",
    "--model tiny --batch 1 --seq 128 --accumulate 4 --precision bf16",
]
PEAK_ABOVE, SECONDS_OFF = 0.03, 0.15


def run(command):
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{finished.stderr}")
    return finished.stdout


def compared(options, profile, setting, folder):
    out = str(folder / "out.json")
    run([options.zero, "compare", *setting.split(), "--ranks", str(options.ranks), "--steps", str(options.steps),
         "--profile", profile, "--json", out])
    return json.loads(pathlib.Path(out).read_text())["runs"]


def measure(options, folder):
    profile = str(folder / "profile.json")
    print(run([options.zero, "bench", "profile", "--ranks", str(options.ranks), "--out", profile]).strip(), flush=True)
    rounds = [{setting: compared(options, profile, setting, folder) for setting in SETTINGS}
              for _ in range(options.rounds)]
    rows = []
    for setting in SETTINGS:
        for i, first in enumerate(rounds[0][setting]):
            runs = [each[setting][i] for each in rounds]
            rows.append({"setting": setting, "plan": first["plan"],
                         "peak": {"predicted": first["peak"]["predicted"],
                                  "measured": max(each["peak"]["measured"] for each in runs)},
                         "seconds": {"predicted": first["predicted_step_seconds"],
                                     "measured": [each["step_seconds"] for each in runs]}})
    return rows


def show(rows):
    print("\n| setting | plan | peak, predicted | measured | | s/step, predicted | measured | least to most | |")
    print("|---|---|---|---|---|---|---|---|---|")
    good_peaks = good_seconds = 0
    for row in rows:
        peak, seconds = row["peak"], row["seconds"]
        above = peak["predicted"] / peak["measured"] - 1
        middle = statistics.median(seconds["measured"])
        off = seconds["predicted"] / middle - 1
        good_peaks += 0 <= above <= PEAK_ABOVE
        good_seconds += abs(off) <= SECONDS_OFF
        print(f"| {row['setting'].replace('--', '')} | {row['plan']} | {peak['predicted']:,} | {peak['measured']:,} | "
              f"{100 * above:+.2f} % | {seconds['predicted']:.3f} | {middle:.3f} | {min(seconds['measured']):.3f} to "
              f"{max(seconds['measured']):.3f} | {100 * off:+.0f} % |")
    print(f"\npeaks at most {100 * PEAK_ABOVE:.0f} % above and never below: {good_peaks} of {len(rows)}")
    print(f"seconds within {100 * SECONDS_OFF:.0f} %: {good_seconds} of {len(rows)}")
    return good_peaks == len(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--zero", default=str(ROOT / "build/release/zero"))
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(options, pathlib.Path(folder))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    sys.exit(0 if show(rows) else 1)


if __name__ == "__main__":
    main()
