#!/usr/bin/env python3
"""The report's page in a browser. browser_test.py MAKE_PAGE [--pictures FOLDER] [unittest's arguments]"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

from browser import Browser
from colours import contrast, luminance
from reports import FULL, REPORTS, STATES, Report, expected_process, expected_state, expected_tiers, expected_time
from reports import expected_wire

SECTIONS = ["runs", "state", "theory", "memory", "wire", "time", "losses", "process"]
MARKS = """[...document.querySelectorAll("#%s svg .tip:not(.scrub)")].map(({dataset: d}) =>
  [d.run, d.series ?? "", d.part, Number(d.value)])"""
TIP = 'document.getElementById("tooltip")'
RGB = """const rgb = (node, property) => getComputedStyle(node)[property].match(/[\\d.]+/g).slice(0, 3).map(Number);"""


class Page(unittest.TestCase):
    browser: Browser
    pages: dict[str, Path]

    def show(self, name: str = "full", **how: Any) -> None:
        self.browser.show(self.pages[name], **how)
        self.assertEqual(self.browser.errors, [])

    def value(self, expression: str) -> Any:
        return self.browser.value(expression)

    def marks(self, section: str) -> list[tuple[str, str, str, float]]:
        return [tuple(each) for each in self.value(MARKS % section)]

    def tooltip(self) -> str | None:
        return self.value(f'{TIP}.hidden ? null : {TIP}.innerText.replace(/\\s+/g, " ").trim()')

    def middle(self, expression: str) -> tuple[float, float]:
        self.value(f'({expression}).scrollIntoView({{block: "center", behavior: "instant"}})')
        self.value("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")  # scroll events
        box = self.value(f"(b => [b.left, b.top, b.width, b.height])(({expression}).getBoundingClientRect())")
        return box[0] + box[2] / 2, box[1] + box[3] / 2

    def cells(self, section: str) -> list[list[str]]:
        rows = f'document.querySelectorAll("#{section} .body > .scroll tbody tr, #{section} details tbody tr")'
        return self.value(f"[...{rows}].map((row) => [...row.cells].map((cell) => cell.textContent))")


class EveryReport(Page):
    def test_runs_without_an_error_and_asks_for_nothing(self) -> None:
        for name, page in self.pages.items():
            with self.subTest(name):
                self.show(name)
                self.assertEqual(self.browser.requests, [page.resolve().as_uri()])

    def test_has_no_horizontal_overflow_on_a_phone(self) -> None:
        for name in self.pages:
            for width in (320, 360, 768):
                with self.subTest(name, width=width):
                    self.show(name, width=width, touch=True)
                    self.value('document.querySelectorAll("details").forEach((each) => (each.open = true))')
                    self.assertEqual(self.value("document.documentElement.scrollWidth"), width)
                    drawn = '[...document.querySelectorAll("figure svg *")]'
                    rights = f"{drawn}.map((n) => n.getBoundingClientRect().right)"
                    self.assertLessEqual(self.value(f"Math.max(0, ...{rights})"), width)

    def test_tables_scroll_within_a_narrow_window(self) -> None:
        self.show(width=500)
        widths = "(t => [t.scrollWidth > t.clientWidth, getComputedStyle(t).overflowX, t.tabIndex])"
        runs = 'document.querySelector("#runs .scroll")'
        self.assertEqual(self.value(f"{widths}({runs})"), [True, "auto", 0])
        self.assertGreater(self.value(f"(t => (t.scrollLeft = 1000, t.scrollLeft))({runs})"), 0)
        last = f"{runs}.querySelector('th:last-child').getBoundingClientRect().right"
        self.assertLessEqual(self.value(last), 500)
        self.assertEqual(self.value("document.documentElement.scrollWidth"), 500)

    def test_shows_the_sections_that_there_is_data_for(self) -> None:
        there = {"as_before": ["runs", "state", "wire", "time", "losses"], "empty": []}
        there["on_disk"] = there["misread"] = [*SECTIONS[:4], "tiers", *SECTIONS[4:]]
        there["one_rank"] = ["runs", "state", "theory", "time", "losses"]
        for name in self.pages:
            with self.subTest(name):
                self.show(name)
                sections = self.value('[...document.querySelectorAll("section")].map((each) => each.id)')
                self.assertEqual(sections, there.get(name, SECTIONS))
                self.assertEqual(self.value('document.querySelectorAll("figure:not(:has(svg .tip))").length'), 0)


class Charts(Page):
    def setUp(self) -> None:
        self.show()

    def test_marks_have_the_values_of_the_report(self) -> None:
        self.assertEqual(sorted(self.marks("state")), sorted(expected_state(FULL)))
        self.assertEqual(sorted(self.marks("wire")), sorted(expected_wire(FULL)))
        self.assertEqual(sorted(self.marks("time")), sorted(expected_time(FULL)))
        self.assertEqual(sorted(self.marks("process")), sorted(expected_process(FULL)))

    def test_tiers_are_what_is_kept_and_moves_there(self) -> None:
        self.show("on_disk")
        report = REPORTS["on_disk"]
        self.assertEqual(sorted(self.marks("tiers")), sorted(expected_tiers(report)))
        run = report["runs"][2]
        (tier,) = run["tiers"]
        rows = [row for row in self.cells("tiers") if row[0] == run["plan"]]
        kept, read = tier["bytes"]["predicted"], tier["read_per_step"]["measured"]
        self.assertEqual(rows[0], [run["plan"], "optimizer on disk", "kept", f"{kept:,}", f"{kept:,}", "0 %"])
        self.assertEqual(rows[1][2:], ["read each step", f"{read:,}", f"{read:,}", "0 %"])
        state = [row for row in self.marks("state") if row[0] == run["plan"] and row[2] == "optimizer"]
        self.assertEqual(state, [], "what is on disk is no memory")
        verdict = 'document.querySelector("#verdicts li").textContent'
        self.assertIn("every byte is the byte predicted", self.value(verdict))
        self.show("misread")
        self.assertIn(f"{run['plan']}: optimizer on disk, read +100.00 %", self.value(verdict))

    def test_lengths_are_in_proportion(self) -> None:
        script = """[...document.querySelectorAll("#%s rect.piece, #%s rect.whole")].map((r) =>
          [Number(r.parentNode.dataset.value), Number(r.getAttribute("width"))]).filter(([, width]) => width > 1)"""
        for section in ("state", "wire", "time", "process"):
            scales = [width / value for value, width in self.value(script % (section, section))]
            self.assertGreater(len(scales), 4, section)
            self.assertLess(max(scales) / min(scales) - 1, 1e-9, section)

    def test_every_mark_says_its_value(self) -> None:
        labels = self.value('[...document.querySelectorAll("#state .tip, #wire .tip, #process .tip")].map((n) => '
                            "[Number(n.dataset.value), n.getAttribute('aria-label')])")
        for value, label in labels:
            self.assertIn(f"{value:,}", label)
        self.assertEqual(self.value('document.querySelectorAll("svg .tip:not([aria-label])").length'), 0)

    def test_an_owner_has_one_colour(self) -> None:
        for owner in (*STATES, "activation"):
            marks = f"[...document.querySelectorAll('[data-part={owner}] > .piece, path[data-part={owner}]')]"
            colours = self.value(f"(() => {{{RGB} return {marks}.map((n) => rgb(n, 'fill').join())}})()")
            self.assertGreater(len(colours), 4, owner)
            self.assertEqual(len(set(colours)), 1, owner)

    def test_a_colour_has_one_meaning(self) -> None:
        script = f"""(() => {{{RGB} return [...document.querySelectorAll("rect.piece, path.area, path.curve")].map((n) =>
          [n.dataset.part ?? n.dataset.runs ?? n.parentNode.dataset.name ?? n.parentNode.dataset.part,
           rgb(n, n.matches(".curve") ? "stroke" : "fill").join()])}})()"""
        same = [{"gathered", "gather", "all gather"}, {"reduction", "reduce", "reduce scatter"}]
        same += [{"activation", "activations"}, {"buffer", "buffers"}]
        for name in ("full", "apart", "optimizers"):
            self.show(name)
            names: dict[str, set[str]] = {}
            for part, colour in self.value(script):
                names.setdefault(colour, set()).add(part)
            self.assertGreater(len(names), 12)
            for colour, parts in names.items():
                self.assertTrue(len(parts) == 1 or any(parts <= each for each in same), f"{name}: {colour} is {parts}")

    def test_theory_stands_beside_what_was_measured(self) -> None:
        rows = self.cells("theory")
        self.assertEqual(len(rows), len(FULL["runs"]))
        for row, run in zip(rows, FULL["runs"]):
            theory = run["theory"]
            state = sum(run["state_bytes"][s]["measured"] for s in STATES)
            wire = run["wire_bytes_per_step"]["measured"]
            self.assertEqual(row[:4], [run["plan"], theory["state"], f"{theory['state_bytes']:,}", f"{state:,}"])
            self.assertEqual(row[5:8], [theory["volume"], f"{theory['volume_bytes']:,}", f"{wire:,}"])
            pairs = ((row[4], state, theory["state_bytes"]), (row[8], wire, theory["volume_bytes"]))
            for cell, value, reference in pairs:
                self.assertEqual(cell, f"{100 * (value - reference) / reference:+.2f} %".replace("-", "−"))

    def test_tables_have_the_values_too(self) -> None:
        zero3 = FULL["runs"][3]
        gradient = zero3["state_bytes"]["gradient"]
        row = ["zero3", "gradient", f"{gradient['predicted']:,}", f"{gradient['measured']:,}", "0 %"]
        self.assertIn(row, self.cells("state"))
        losses = [[str(i + 1), *[repr(run["losses"][i]) for run in FULL["runs"][:1]]] for i in range(5)]
        self.assertEqual(self.cells("losses"), losses)
        self.assertIn(f"{zero3['process_bytes']:,}", self.cells("process")[3])


class Timeline(Page):
    def setUp(self) -> None:
        self.show()

    def check(self, run: Report) -> None:
        samples = run["timeline"]["samples"]
        peak = max(samples, key=lambda sample: sum(sample[1:]))
        used = [i for i in range(7) if any(sample[i + 1] for sample in samples)]
        expected = [[run["plan"], run["timeline"]["owners"][i], peak[i + 1]] for i in used]
        areas = '[...document.querySelectorAll("#memory path.area")].map(({dataset: d}) => %s)'
        self.assertEqual(self.value(areas % "[d.run, d.part, Number(d.value)]"), expected)
        parts = [each[2] for each in self.marks("memory")]
        self.assertEqual(parts.count("phase"), len(run["timeline"]["phases"]))
        self.assertEqual(parts.count("activity"), len(run["timeline"]["activities"]))

    def test_shows_owners_phases_and_activities_of_the_chosen_run(self) -> None:
        self.check(FULL["runs"][0])
        choose = '(s => {s.value = %d; s.dispatchEvent(new Event("change"))})(document.getElementById("timeline-run"))'
        for i, run in enumerate(FULL["runs"]):
            self.value(choose % i)
            self.check(run)

    def test_one_run_has_no_choice(self) -> None:
        self.show("one_run")
        self.assertIsNone(self.value('document.getElementById("timeline-run")'))
        self.check(FULL["runs"][3])

    def test_what_goes_on_within_another_lies_over_it(self) -> None:
        self.show("nested")
        at_its_middle = """(rect => { const {x, y, width, height} = rect.getBoundingClientRect();
          return document.elementFromPoint(x + width / 2, y + height / 2) === rect; })"""
        pieces = '[...document.querySelectorAll("#memory .tip[data-part=activity] rect")]'
        self.value(f"{pieces}[0].scrollIntoView()")
        names = f"{pieces}.filter({at_its_middle}).map((each) => each.closest('.tip').dataset.name)"
        self.assertEqual(self.value(names), ["backward", "recompute", "fetch", "step"])

    def test_keys_walk_through_the_samples(self) -> None:
        self.value('document.querySelector("#memory .scrub").focus()')
        run = FULL["runs"][0]
        for key, sample in (("Home", 0), ("ArrowRight", 1), ("ArrowLeft", 0), ("End", -1)):
            self.browser.press(key)
            total = sum(run["timeline"]["samples"][sample][1:])
            self.assertIn(f"all {total / 2**20:.1f} MiB", self.tooltip())
        self.assertEqual(self.value('document.querySelector("#memory .scrub").getAttribute("aria-valuenow")'), "48")


class Losses(Page):
    def legend(self) -> list[str]:
        return self.value('[...document.querySelectorAll("#losses .legend li")].map((each) => each.textContent)')

    def points(self) -> list[int]:
        paths = 'document.querySelectorAll("#losses path.curve")'
        return self.value(f'[...{paths}].map((p) => p.getAttribute("d").match(/[ML]/g).length)')

    def verdicts(self) -> list[list[str]]:
        items = 'document.querySelectorAll("#verdicts li")'
        return self.value(f"[...{items}].map((li) => [li.dataset.holds, li.textContent])")

    def test_identical_ones_share_a_curve_and_say_so(self) -> None:
        self.show()
        self.assertEqual(self.legend(), ["ddp, zero1, zero2, zero3: identical to the bit"])
        self.assertEqual(self.points(), [5])
        self.assertEqual([m[3] for m in self.marks("losses")], [e["loss"] for e in FULL["runs"][0]["evaluations"]])
        self.assertEqual([holds for holds, _ in self.verdicts()], ["true"] * 3)

    def test_the_last_bit_is_a_difference(self) -> None:
        self.show("last_bit")
        self.assertEqual(self.legend(), ["ddp, zero2, zero3: identical to the bit", "zero1"])
        self.assertEqual(self.verdicts()[-1], ["false", "Losses of zero1 differ from those of ddp from step 5 on"])

    def test_what_is_no_number_is_a_gap(self) -> None:
        self.show("apart")
        self.assertEqual(self.legend(), ["ddp, zero1, zero2: identical to the bit", "zero3"])
        self.assertEqual(self.points(), [5, 4])
        table = self.value('document.querySelector("#losses table").textContent')
        self.assertIn("not a number", table)
        verdicts = self.verdicts()
        self.assertEqual([holds for holds, _ in verdicts], ["false"] * 3)
        self.assertIn("zero2: gradient +", verdicts[0][1])
        self.assertIn("below it for zero2", verdicts[1][1])
        self.assertIn("Losses of zero3 differ from those of ddp from step 3 on", verdicts[2][1])

    def test_steps_of_different_bytes_are_a_difference(self) -> None:
        self.show("uneven")
        text = "Bytes differ from the predicted: zero1: wire differs between steps"
        self.assertEqual(self.verdicts()[0], ["false", text])

    def test_those_of_different_optimizers_are_not_compared(self) -> None:
        self.show("optimizers")
        self.assertEqual(self.verdicts()[-1][0], "null")
        names = self.value('[...document.querySelectorAll("#runs td:first-child")].map((each) => each.textContent)')
        self.assertEqual(names, ["adamw fp32", "adamw bf16", "lion fp32"])
        theory = [row[0] for row in self.cells("theory")]
        self.assertEqual(theory, names)

    def test_a_long_run_has_a_short_table(self) -> None:
        self.show("long")
        self.assertEqual(self.points(), [3000])
        self.assertLessEqual(len(self.cells("losses")), 201)
        self.assertLessEqual(len(self.cells("memory")), 202)
        self.assertEqual(self.cells("losses")[-1][0], "3,000")


class Tooltips(Page):
    PIECE = 'document.querySelector("#state .tip[data-run=zero1][data-series=measured][data-part=optimizer] rect")'
    TEXT = "zero1, measured optimizer 3.3 MiB (3,444,736) of the bar 20.1 %"

    def test_a_pointer_shows_and_hides(self) -> None:
        self.show()
        self.assertIsNone(self.tooltip())
        self.browser.move(*self.middle(self.PIECE))
        self.assertEqual(self.tooltip(), self.TEXT)
        self.browser.move(2, 2)
        self.assertIsNone(self.tooltip())

    def test_a_pointer_reads_a_curve(self) -> None:
        self.show()
        self.browser.move(*self.middle('document.querySelector("#losses .scrub .hit")'))
        self.assertEqual(self.tooltip(), f"Step 3 ddp, zero1, zero2, zero3 {FULL['runs'][0]['losses'][2]!r}")

    def test_a_touch_shows(self) -> None:
        self.show(width=360, touch=True)
        self.browser.tap(*self.middle(self.PIECE))
        self.assertEqual(self.tooltip(), self.TEXT)

    def test_keys_reach_every_mark_from_one_stop(self) -> None:
        self.show()
        for section in ("state", "wire", "time", "process"):
            count = len(self.marks(section))
            stops = f'[...document.querySelectorAll("#{section} svg .tip")].filter((n) => n.tabIndex === 0).length'
            self.assertEqual(self.value(stops), 1, section)
            self.value(f'document.querySelector("#{section} .tip").focus()')
            seen = [self.tooltip()]
            for _ in range(count - 1):
                self.browser.press("ArrowRight")
                seen.append(self.tooltip())
            self.assertEqual(len(set(seen)), count, section)
            self.browser.press("Escape")
            self.assertIsNone(self.tooltip())

    def test_stay_within_the_window(self) -> None:
        self.show(width=360, touch=True)
        for section in ("state", "process", "losses"):
            for index in (0, -1):
                self.value(f'[...document.querySelectorAll("#{section} .tip")].at({index}).focus()')
                left, right, top = self.value(f"(b => [b.left, b.right, b.top])({TIP}.getBoundingClientRect())")
                self.assertGreaterEqual(min(left, top), 0)
                self.assertLessEqual(right, 360)

    def test_do_not_move_where_motion_is_not_wanted(self) -> None:
        self.show()
        features = [{"name": "prefers-reduced-motion", "value": "reduce"}]
        duration = 'getComputedStyle(document.getElementById("tooltip")).transitionDuration'
        self.assertNotEqual(self.value(duration), "0s")
        self.browser.call("Emulation.setEmulatedMedia", features=features)
        self.assertEqual(self.value(duration), "0s")


class Colours(Page):
    def surface(self) -> list[float]:
        return self.value(f'(() => {{{RGB} return rgb(document.querySelector("section"), "backgroundColor")}})()')

    def test_are_light_or_dark_as_asked(self) -> None:
        for scheme, dark in (("light", False), ("dark", True)):
            self.show(scheme=scheme)
            script = f'(() => {{{RGB} return rgb(document.body, "backgroundColor")}})()'
            self.assertEqual(luminance(self.value(script)) < 0.05, dark)

    def test_text_can_be_read(self) -> None:
        for scheme in ("light", "dark"):
            self.show(scheme=scheme)
            surface = self.surface()
            texts = 'document.querySelectorAll("section p, section td, section th, summary, svg text")'
            script = f"""(() => {{{RGB} return [...{texts}].map((n) => [n.textContent,
              rgb(n, n.namespaceURI.endsWith("svg") ? "fill" : "color"),
              n.matches(".inside") ? rgb(n.parentNode.querySelector(".piece"), "fill") : null])}})()"""
            for text, ink, ground in self.value(script):
                self.assertGreaterEqual(contrast(ink, ground or surface), 4.5, f"{scheme}: {text}")

    def test_marks_stand_out(self) -> None:
        for scheme in ("light", "dark"):
            self.show(scheme=scheme)
            surface = self.surface()
            script = f"""(() => {{{RGB} return [...document.querySelectorAll("rect.piece")].map((n) =>
              [n.parentNode.dataset.part, rgb(n, "fill")])}})()"""
            for part, fill in self.value(script):
                self.assertGreaterEqual(contrast(fill, surface), 1.4 if part == "wait" else 2, f"{scheme}: {part}")


def take_pictures(browser: Browser, pages: dict[str, Path], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for width in (1200, 360):
        for scheme in ("light", "dark"):
            for name, page in pages.items():
                browser.show(page, width=width, scheme=scheme, touch=width == 360)
                browser.picture(folder / f"{name}-{width}-{scheme}.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("make_page", type=Path)
    parser.add_argument("--pictures", type=Path, help="also take pictures into this folder")
    options, rest = parser.parse_known_args()
    with tempfile.TemporaryDirectory(prefix="zero.report.") as folder, Browser() as browser:
        Page.browser, Page.pages = browser, {}
        for name, report in REPORTS.items():
            data, page = Path(folder, f"{name}.json"), Path(folder, f"{name}.html")
            data.write_text(json.dumps(report, ensure_ascii=False))
            subprocess.run([options.make_page, data, page], check=True)
            Page.pages[name] = page
        if options.pictures:
            take_pictures(browser, Page.pages, options.pictures)
        result = unittest.main(argv=[sys.argv[0], *rest], exit=False).result
    sys.exit(not result.wasSuccessful())


if __name__ == "__main__":
    main()
