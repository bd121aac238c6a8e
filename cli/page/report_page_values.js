"use strict";

// What the page shows, as values: numbers for people, names of runs, verdicts. Nothing here draws.

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const sum = (values) => values.reduce((total, value) => total + value, 0);
const unique = (values) => [...new Set(values)];
const separated = (value) => value.toLocaleString("en-US");
const fixed = (value, digits) =>
  value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

function byteUnit(bytes) {
  const power = bytes >= 1 ? Math.floor(Math.log2(bytes) / 10) : 0;
  return Math.min(power, UNITS.length - 1);
}

function humanBytes(bytes) {
  const power = byteUnit(Math.abs(bytes));
  return `${fixed(bytes / 1024 ** power, power ? 1 : 0)} ${UNITS[power]}`;
}

function exactBytes(bytes) {
  return bytes < 1024 ? `${separated(bytes)} B` : `${humanBytes(bytes)} (${separated(bytes)})`;
}

// Three significant digits.
function humanSeconds(seconds) {
  const size = Math.abs(seconds);
  if (size === 0) return "0 s";
  const [factor, unit] = size < 1e-3 ? [1e6, "µs"] : size < 1 ? [1e3, "ms"] : [1, "s"];
  const scaled = seconds * factor;
  return `${fixed(scaled, Math.max(0, 2 - Math.floor(Math.log10(Math.abs(scaled)))))} ${unit}`;
}

// Of `value` against `reference`.
function difference(value, reference) {
  if (!isNumber(value) || !isNumber(reference)) return "–";
  if (value === reference) return "0 %";
  if (reference === 0) return "–";
  const percent = (100 * (value - reference)) / reference;
  const digits = Math.abs(percent) < 0.1 ? 4 : 2;
  return `${percent < 0 ? "−" : "+"}${fixed(Math.abs(percent), digits)} %`;
}

const shown = (value, format) => (isNumber(value) ? format(value) : "–");
const lossText = (loss) => (isNumber(loss) ? String(loss) : "not a number");
const plural = (count, word) => `${separated(count)} ${word}${count === 1 ? "" : "s"}`;

// What tells the runs apart, in as few words as possible; a number where nothing does.
function namedRuns(runs) {
  const differing = ["plan", "optimizer", "precision"].filter((key) => unique(runs.map((run) => run[key])).length > 1);
  const keys = differing.length ? differing : ["plan"];
  const names = runs.map((run) => keys.map((key) => run[key]).filter(Boolean).join(" ") || "run");
  return runs.map((run, i) => {
    const count = (among) => among.filter((name) => name === names[i]).length;
    return { ...run, name: count(names) > 1 ? `${names[i]} #${count(names.slice(0, i + 1))}` : names[i] };
  });
}

const STATES = ["parameter", "gradient", "optimizer"];
const stateBytes = (run, side) => sum(STATES.map((state) => run.state_bytes?.[state]?.[side] ?? 0));

// State by state, without what is on other tiers, then what comes and goes within a step. Only what the run knows.
function memoryParts(run) {
  const parts = STATES.map((state) => {
    const part = { key: state, name: state, ...run.state_bytes?.[state] };
    for (const { bytes } of (run.tiers ?? []).filter((tier) => tier.state === state))
      for (const side of ["predicted", "measured"]) part[side] -= bytes[side];
    return part;
  });
  parts.push({ key: "activation", name: "activation", ...run.activation_bytes });
  parts.push({ key: "buffer", name: "buffer", ...run.buffer_bytes });
  return parts.filter((part) => isNumber(part.predicted) || isNumber(part.measured));
}

// What a file may name, by the colour that shows it: names that share one mean the same, in memory, on the wire or in
// time.
const COLOURS = {
  parameter: ["parameter", "parameters"],
  gradient: ["gradient", "gradients"],
  optimizer: ["optimizer"],
  gathered: ["gathered", "gather", "all_gather", "publish"],
  reduction: ["reduction", "reduce", "reduce_scatter", "all_reduce"],
  update: ["update"],
  activation: ["activation", "activations", "store", "fetch"],
  buffer: ["buffer", "buffers", "communication"],
  compute: ["compute", "recompute"],
  forward: ["forward"],
  backward: ["backward"],
  step: ["step"],
  direct: ["direct"],
  read: ["read"],
  wait: ["wait", "vote"],
  wire: ["wire"],
  temporary: ["temporary"],
  other: ["other"],
  broadcast: ["broadcast"],
  tensors: ["tensors"],
  state: ["engine state"],
  shared: ["shared memory"],
  slack: ["allocator slack"],
  heap: ["heap"],
  libraries: ["libraries"],
  stacks: ["thread stacks"],
};
const COLOUR_OF = new Map(Object.entries(COLOURS).flatMap(([key, all]) => all.map((name) => [name, key])));
const OWN_COLOURS = COLOUR_OF.size;
const EXTRA_COLOURS = 8;

// By name. What has no colour of its own gets the next of the others, for the whole page.
function colourKeys(names) {
  for (const name of names)
    if (!COLOUR_OF.has(name)) COLOUR_OF.set(name, `extra${(COLOUR_OF.size - OWN_COLOURS) % EXTRA_COLOURS}`);
  return new Map(unique(names).map((name) => [name, COLOUR_OF.get(name)]));
}

const sameLosses = (a, b) => a.length === b.length && a.every((loss, i) => Object.is(loss, b[i]));

// Runs with the same losses to the bit, in order of appearance: [{runs, losses}].
function curves(runs) {
  const groups = [];
  for (const run of runs) {
    const group = groups.find((each) => sameLosses(each.losses, run.losses));
    if (group) group.runs.push(run);
    else groups.push({ losses: run.losses, runs: [run] });
  }
  return groups;
}

const listed = (group) => group.map((run) => run.name).join(", ");
const curveName = (curve) => listed(curve.runs) + (curve.runs.length > 1 ? ": identical to the bit" : "");

function firstDifference(a, b) {
  const length = Math.max(a.length, b.length);
  for (let i = 0; i < length; ++i) if (!Object.is(a[i], b[i])) return i + 1;
  return 0;
}

// A verdict is {holds: true, false or null (cannot be said), text}.
function bytesVerdict(runs) {
  const faults = [];
  let compared = 0;
  for (const run of runs) {
    const wire = run.wire_bytes_per_step;
    const each = STATES.map((state) => [state, run.state_bytes?.[state], run.state_bytes?.[state]?.measured]);
    const ways = [["wire", wire], ["wire across hosts", wire?.across_hosts], ["wire read in place", wire?.in_place],
      ...(wire?.codes ?? []).flatMap(({ state, codec, within_host, across_hosts }) =>
        [[`${state}s in ${codec}`, within_host], [`${state}s in ${codec} across hosts`, across_hosts]])];
    for (const [what, bytes, found] of [...each, ...ways.map(([way, bytes]) => [way, bytes, bytes?.measured])]) {
      if (!bytes) continue;
      ++compared;
      if (bytes.predicted !== found) faults.push(`${run.name}: ${what} ${difference(found, bytes.predicted)}`);
    }
    if (wire?.uneven) faults.push(`${run.name}: wire differs between steps`);
    for (const tier of run.tiers ?? []) {
      const where = `${tier.state} on ${tier.tier}`;
      const ways = [["", tier.bytes], [", read", tier.read_per_step], [", written", tier.written_per_step]];
      for (const [way, { predicted, measured }] of ways.filter(([, bytes]) => isNumber(bytes.measured)))
        if (predicted !== measured) faults.push(`${run.name}: ${where}${way} ${difference(measured, predicted)}`);
      if (tier.uneven) faults.push(`${run.name}: ${where} differs between steps`);
    }
  }
  if (!compared) return null;
  if (!faults.length) return { holds: true, text: "State and wire as measured: every byte is the byte predicted" };
  return { holds: false, text: `Bytes differ from the predicted: ${faults.join("; ")}` };
}

function peakVerdict(runs) {
  const known = runs.filter((run) => isNumber(run.peak?.predicted) && run.peak.measured > 0);
  if (!known.length) return null;
  const errors = known.map((run) => run.peak.predicted / run.peak.measured - 1);
  const below = known.filter((run) => run.peak.predicted < run.peak.measured).map((run) => run.name);
  const widest = Math.max(...errors.map(Math.abs));
  const side = below.length ? `below it for ${below.join(", ")}` : "never below it";
  const text = `Predicted peak within ${fixed(100 * widest, 2)} % of the measured, ${side}`;
  return { holds: !below.length && widest <= 0.03, text };
}

// Runs of one optimizer and precision are expected to agree.
function lossVerdicts(runs) {
  const kind = (run) => [run.optimizer, run.precision].filter(Boolean).join(", ");
  const kinds = unique(runs.map(kind));
  return kinds.flatMap((name) => {
    const group = runs.filter((run) => kind(run) === name && run.losses.length);
    if (group.length < 2) return [];
    const of = kinds.length > 1 ? ` (${name})` : "";
    const other = group.find((run) => !sameLosses(run.losses, group[0].losses));
    if (!other) return [{ holds: true, text: `Losses identical to the bit under ${listed(group)}${of}` }];
    const step = firstDifference(group[0].losses, other.losses);
    const where = `from step ${separated(step)} on${of}`;
    return [{ holds: false, text: `Losses of ${other.name} differ from those of ${group[0].name} ${where}` }];
  });
}

function verdicts(runs) {
  const losses = lossVerdicts(runs);
  const lone = runs.length > 1 && !losses.length;
  const none = { holds: null, text: "Losses are not compared: no two runs have the same optimizer and precision" };
  return [bytesVerdict(runs), peakVerdict(runs), ...losses, lone ? none : null].filter(Boolean);
}

// The least of a figure over the runs, and how it compares to the first run's: {title, value, note}.
function figure(runs, title, value, format, best = (a, b) => a < b) {
  const known = runs.filter((run) => isNumber(value(run)) && value(run) > 0);
  if (!known.length) return null;
  const chosen = known.reduce((a, b) => (best(value(b), value(a)) ? b : a));
  const note = known.length === 1 ? chosen.name
    : chosen === known[0] ? `${chosen.name}, of ${plural(known.length, "run")}`
    : `${chosen.name}, ${fixed((100 * value(chosen)) / value(known[0]), 1)} % of ${known[0].name}`;
  return { title, value: format(value(chosen)), note };
}

function figures(runs) {
  const least = runs.length > 1 ? (text) => `Least ${text}` : (text) => text[0].toUpperCase() + text.slice(1);
  return [
    figure(runs, least("state of a rank"), (run) => stateBytes(run, "measured"), humanBytes),
    figure(runs, least("peak of a process"), (run) => run.peak_bytes, humanBytes),
    figure(runs, least("bytes on the wire"), (run) => run.wire_bytes_per_step?.measured, humanBytes),
    figure(runs, least("time of a step"), (run) => run.step_seconds, humanSeconds),
  ].filter(Boolean);
}
