// The sections of the page, from the data in it.

const report = JSON.parse(document.getElementById("data").textContent);
const runs = namedRuns((report.runs ?? []).map((run) => ({ ...run, losses: run.losses ?? [] })));

// Without content the section is not there.
function section(id, content) {
  const node = document.getElementById(id);
  if (!content) return node.remove();
  const body = node.querySelector(".body");
  body.append(...content);
  for (const each of body.querySelectorAll(".chart")) each.redraw();
}

function legendOf(names) {
  const keys = colourKeys(names);
  return legend(unique(names).map((name) => ({ name, key: keys.get(name) })));
}

function heading() {
  const steps = Math.max(0, ...runs.map((run) => run.losses.length));
  const words = [
    isNumber(report.ranks) && plural(report.ranks, "rank"), report.model && `model ${report.model}`,
    isNumber(report.parameters) && plural(report.parameters, "parameter"), report.precision, report.optimizer,
    isNumber(report.batch) && plural(report.batch, "sequence") + " a micro-batch and rank",
    isNumber(report.seq) && plural(report.seq, "token") + " a sequence",
    isNumber(report.accumulate) && plural(report.accumulate, "micro-batch").replace(/batchs$/, "batches") + " a step",
    steps > 0 && plural(steps, "step"),
  ];
  const title = ["No runs", `One run, ${runs[0]?.name}`][runs.length] ?? `${plural(runs.length, "run")} compared`;
  document.getElementById("title").textContent = title;
  document.title = `libzero: ${title}`;
  document.getElementById("summary").textContent = words.filter(Boolean).join(", ");
  if (report.command) document.getElementById("command").append(html("code", {}, report.command));
}

function verdictIcon(holds) {
  const [kind, label, d] = {
    true: ["yes", "holds", "M3 8.5l3.5 3.5L13 4.5"],
    false: ["no", "does not hold", "M4 4l8 8M12 4l-8 8"],
    null: ["none", "not compared", "M4 8h8"],
  }[holds];
  const stroke = { fill: "none", "stroke-width": 2.2, "stroke-linecap": "round", class: `mark-${kind}` };
  return svg("svg", { viewBox: "0 0 16 16", role: "img", "aria-label": label }, svg("path", { d, ...stroke }));
}

function overview() {
  const list = document.getElementById("verdicts");
  for (const { holds, text: words } of verdicts(runs)) {
    list.append(html("li", { "data-holds": String(holds) }, verdictIcon(holds), html("span", {}, words)));
  }
  const cards = document.getElementById("figures");
  for (const { title, value, note } of figures(runs)) {
    const [large, small] = [html("dd", { class: "value" }, value), html("dd", { class: "note" }, note)];
    cards.append(html("div", {}, html("dt", {}, title), large, small));
  }
}

function runsTable() {
  if (!runs.length) return null;
  const columns = [
    ["state of a rank", (run) => stateBytes(run, "measured"), humanBytes],
    ["peak", (run) => run.peak?.measured, humanBytes],
    ["peak of the process", (run) => run.peak_bytes, humanBytes],
    ["wire each step", (run) => run.wire_bytes_per_step?.measured, humanBytes],
    ["step", (run) => run.step_seconds, humanSeconds],
    ["step, predicted", (run) => run.predicted_step_seconds, humanSeconds],
    ["tokens/s", (run) => run.tokens_per_second, (value) => fixed(value, 0)],
    ["last loss", (run) => run.losses.at(-1), String],
  ].filter(([, value]) => runs.some((run) => isNumber(value(run))));
  const rows = runs.map((run) => [run.name, ...columns.map(([, value, format]) => shown(value(run), format))]);
  return [table("Runs", ["run", ...columns.map(([name]) => name)], rows)];
}

function sideBar(run, side) {
  const known = memoryParts(run).filter((part) => isNumber(part[side]));
  const parts = known.map((part) => ({ key: part.key, name: part.name, value: part[side] }));
  const peak = run.peak?.[side];
  const limits = isNumber(peak) ? [{ name: run.peak.moment ? `peak, ${run.peak.moment}` : "peak", value: peak }] : [];
  const label = isNumber(peak) ? `peak ${humanBytes(peak)}` : humanBytes(sum(parts.map((part) => part.value)));
  return { name: side, parts, limits, label };
}

function memoryRows(run) {
  const peak = run.peak ? [{ name: `peak${run.peak.moment ? `, ${run.peak.moment}` : ""}`, ...run.peak }] : [];
  return [...memoryParts(run), ...peak].map(({ name, predicted, measured }) => {
    const bytes = [shown(predicted, separated), shown(measured, separated)];
    return [run.name, name, ...bytes, difference(measured, predicted)];
  });
}

function stateSection() {
  const known = runs.filter((run) => memoryParts(run).length);
  if (!known.length) return null;
  const groups = known.map((run) => ({ name: run.name, bars: [sideBar(run, "predicted"), sideBar(run, "measured")] }));
  const names = known.flatMap((run) => memoryParts(run).map((part) => part.name));
  const note =
    "The upright line is the peak. Each part is shown at its largest, which not all have at one moment, so that the " +
    "peak can lie below the end of the bar.";
  return [legendOf(names), stackedBars("Memory of a rank", groups, BYTES),
    known.some((run) => isNumber(run.peak?.measured)) ? html("p", {}, note) : "",
    asTable("Memory of a rank", ["run", "bytes", "predicted", "measured", "difference"], known.flatMap(memoryRows), 2)];
}

function theorySection() {
  const known = runs.filter((run) => run.theory);
  if (!known.length) return null;
  const rows = known.map((run) => {
    const { theory } = run, wire = run.wire_bytes_per_step?.measured;
    const cells = (formula, bytes, value) =>
      [formula, shown(bytes, separated), shown(value, separated), difference(value, bytes)];
    const volume = cells(theory.volume, theory.volume_bytes, wire);
    return [run.name, ...cells(theory.state, theory.state_bytes, stateBytes(run, "measured")), ...volume];
  });
  const headers = ["run", "state", "bytes", "measured", "difference", "volume", "bytes", "measured", "difference"];
  return [table("Theory and measurement", headers, rows)];
}

function timelineRows(run) {
  const memory = memoryOf(run.timeline);
  const every = Math.ceil(memory.times.length / 200);
  const rows = memory.times.map((time, i) => {
    const held = memory.owners.map((owner) => separated(owner.bytes[i]));
    return [humanSeconds(time), ...held, separated(memory.totals[i])];
  });
  const headers = ["time", ...memory.owners.map((owner) => owner.name), "all"];
  return { headers, rows: rows.filter((_, i) => i % every === 0 || i === memory.peak) };
}

function timelineOf(run) {
  const { headers, rows } = timelineRows(run);
  const activities = [...activityColours(run)].map(([name, key]) => ({ name, key }));
  const owners = memoryOf(run.timeline).owners.map((owner) => owner.name);
  return [legendOf(owners), timelinePlot(run), activities.length ? legend(activities) : "",
    asTable(`Memory within a step, ${run.name}`, headers, rows)];
}

function timelineSection() {
  const known = runs.filter((run) => run.timeline?.samples?.length);
  if (!known.length) return null;
  const holder = html("div");
  const show = (i) => {
    holder.replaceChildren(...timelineOf(known[i]));
    for (const each of holder.querySelectorAll(".chart")) each.redraw();
  };
  const options = known.map((run, i) => html("option", { value: i }, run.name));
  const select = html("select", { id: "timeline-run" }, ...options);
  select.addEventListener("change", () => show(Number(select.value)));
  const chooser = html("label", { class: "choose" }, "Run", select);
  show(0);
  return known.length > 1 ? [chooser, holder] : [holder];
}

// Bytes that move are those read and those written.
function tiersSection() {
  const known = runs.filter((run) => run.tiers?.length);
  if (!known.length) return null;
  const moved = (tier, side) => sum([tier.read_per_step[side] ?? 0, tier.written_per_step[side] ?? 0]);
  const bar = (run, side) => {
    const parts = run.tiers.map((tier) => ({ key: tier.state, name: tier.state, value: moved(tier, side) }));
    return { name: side, parts, label: humanBytes(sum(parts.map((part) => part.value))) };
  };
  const groups = known.map((run) => ({ name: run.name, bars: [bar(run, "predicted"), bar(run, "measured")] }));
  const both = ({ predicted, measured }) =>
    [shown(predicted, separated), shown(measured, separated), difference(measured, predicted)];
  const rows = known.flatMap((run) => run.tiers.flatMap((tier) =>
    [["kept", tier.bytes], ["read each step", tier.read_per_step], ["written each step", tier.written_per_step]]
      .map(([what, bytes]) => [run.name, `${tier.state} on ${tier.tier}`, what, ...both(bytes)])));
  return [legendOf(known.flatMap((run) => run.tiers.map((tier) => tier.state))),
    stackedBars("Bytes moved between tiers", groups, BYTES),
    asTable("Other tiers", ["run", "state", "bytes", "predicted", "measured", "difference"], rows, 3)];
}

// What activation budgets did.
function recomputationSection() {
  const known = runs.filter((run) => run.recomputation);
  if (!known.length) return null;
  const rows = known.map(({ name, recomputation: use }) =>
    [name, separated(use.unlimited_bytes), separated(use.budget_bytes), shown(use.planned_bytes || null, separated),
      separated(use.peak_bytes), separated(use.operators), separated(use.operators_again),
      `${(100 * use.share_of_time).toFixed(1)} %`]);
  return [asTable("Activations within a budget",
    ["run", "without, bytes", "budget", "planned", "peak", "operators", "run again", "of their time"], rows)];
}

function wireParts(run) {
  const named = Object.entries(run.wire_bytes_by_collective ?? {}).filter(([, bytes]) => isNumber(bytes));
  const entries = named.length ? named : [["wire", run.wire_bytes_per_step.measured]];
  const keys = colourKeys(entries.map(([name]) => name));
  return entries.map(([name, value]) => ({ key: keys.get(name), name: name.replace(/_/g, " "), value }));
}

// By which way, of all collectives.
const LINKS = [["within_host", "within the host"], ["across_hosts", "across hosts"], ["in_place", "read in place"]];

function wireSection() {
  const known = runs.filter((run) => run.wire_bytes_per_step);
  if (!known.some((run) => run.wire_bytes_per_step.predicted || run.wire_bytes_per_step.measured)) return null;
  const groups = known.map((run) => {
    const { predicted, measured } = run.wire_bytes_per_step;
    const whole = [{ name: "all collectives", value: predicted, whole: true }];
    return { name: run.name, bars: [
      { name: "predicted", parts: whole, label: humanBytes(predicted) },
      { name: "measured", parts: wireParts(run), label: humanBytes(measured) }] };
  });
  const keys = new Map(known.flatMap(wireParts).filter((part) => part.value > 0).map((part) => [part.name, part.key]));
  const names = [...keys.keys()];
  const links = LINKS.filter(([key]) => known.some((run) => run.wire_bytes_per_step[key]?.measured > 0));
  const rows = known.map((run) => {
    const { predicted, measured } = run.wire_bytes_per_step;
    const parts = new Map(wireParts(run).map((part) => [part.name, part.value]));
    const split = names.map((name) => shown(parts.get(name), separated));
    const ways = links.map(([key]) => shown(run.wire_bytes_per_step[key]?.measured, separated));
    return [run.name, ...split, ...ways, separated(measured), separated(predicted), difference(measured, predicted)];
  });
  return [legend(names.map((name) => ({ name, key: keys.get(name) }))), stackedBars("Bytes on the wire", groups, BYTES),
    asTable("Bytes on the wire",
      ["run", ...names, ...links.map(([, name]) => name), "measured", "predicted", "difference"], rows),
    ...codesTable(known)];
}

// What of it are codes, by what they are of and by link.
function codesTable(known) {
  const rows = known.flatMap((run) => (run.wire_bytes_per_step.codes ?? []).flatMap((codes) =>
    LINKS.filter(([link]) => codes[link]?.predicted || codes[link]?.measured).map(([link, way]) => {
      const { predicted, measured } = codes[link];
      return [run.name, `${codes.state}s`, codes.codec, way, separated(measured), separated(predicted),
        difference(measured, predicted)];
    })));
  if (!rows.length) return [];
  return [asTable("Of it in codes", ["run", "of", "codec", "link", "measured", "predicted", "difference"], rows, 4)];
}

// What the named parts leave of a step is shown as "other".
function timeParts(run) {
  const named = Object.entries(run.seconds ?? {}).filter(([, seconds]) => isNumber(seconds));
  const keys = colourKeys(named.map(([name]) => name));
  const rest = run.step_seconds - sum(named.map(([, seconds]) => seconds));
  const parts = named.map(([name, value]) => ({ key: keys.get(name), name, value }));
  if (rest > 0.005 * run.step_seconds) parts.push({ key: "other", name: named.length ? "other" : "step", value: rest });
  return parts;
}

function timeSection() {
  const known = runs.filter((run) => isNumber(run.step_seconds));
  if (!known.length) return null;
  const limits = (run) =>
    isNumber(run.predicted_step_seconds) ? [{ name: "predicted", value: run.predicted_step_seconds }] : [];
  const estimated = known.some((run) => run.profile_estimated)
    ? ", from figures of the machine that are estimated from data sheets, not measured." : ".";
  const groups = known.map((run) => {
    const bar = { name: "measured", parts: timeParts(run), limits: limits(run), label: humanSeconds(run.step_seconds) };
    return { name: run.name, bars: [bar] };
  });
  const keys = new Map(known.flatMap(timeParts).map((part) => [part.name, part.key]));
  const names = [...keys.keys()];
  const rows = known.map((run) => {
    const parts = new Map(timeParts(run).map((part) => [part.name, part.value]));
    return [run.name, ...names.map((name) => shown(parts.get(name), humanSeconds)), humanSeconds(run.step_seconds),
      shown(run.predicted_step_seconds, humanSeconds), difference(run.predicted_step_seconds, run.step_seconds)];
  });
  return [legend(names.map((name) => ({ name, key: keys.get(name) }))), stackedBars("Time of a step", groups, SECONDS),
    known.some((run) => limits(run).length) ? html("p", {}, "The upright line is the predicted time" + estimated) : "",
    asTable("Time of a step", ["run", ...names, "step", "predicted", "difference"], rows)];
}

function lossSection() {
  const groups = curves(runs.filter((run) => run.losses.length));
  if (!groups.length) return null;
  const steps = Math.max(...groups.map((group) => group.losses.length)), every = Math.ceil(steps / 200);
  const cell = (group, i) => (i < group.losses.length ? lossText(group.losses[i]) : "–");
  const rows = Array.from({ length: steps }, (_, i) => [separated(i + 1), ...groups.map((group) => cell(group, i))]);
  const kept = rows.filter((_, i) => i % every === 0 || i === steps - 1);
  return [legend(groups.map((group, i) => ({ name: curveName(group), ...curveStyle(i) }))), lossPlot(groups),
    groups.some((group) => evaluationsOf(group).length) ? html("p", {}, "Points: evaluations on held-out data.") : "",
    asTable("Losses", ["step", ...groups.map((group) => listed(group.runs))], kept)];
}

function processSection() {
  const known = runs.filter((run) => run.process?.length);
  if (!known.length) return null;
  const names = unique(known.flatMap((run) => run.process.map((part) => part.name)));
  const keys = colourKeys(names);
  const groups = known.map((run) => {
    const parts = run.process.map(({ name, bytes }) => ({ key: keys.get(name), name, value: bytes }));
    const limits = isNumber(run.process_bytes) ? [{ name: "the process", value: run.process_bytes }] : [];
    const label = humanBytes(sum(parts.map((part) => part.value)));
    return { name: run.name, bars: [{ name: "measured", parts, limits, label }] };
  });
  const rows = known.map((run) => {
    const parts = new Map(run.process.map((part) => [part.name, part.bytes])), all = sum([...parts.values()]);
    const split = names.map((name) => shown(parts.get(name), separated));
    return [run.name, ...split, separated(all), shown(run.process_bytes, separated), difference(all, run.process_bytes)];
  });
  return [legendOf(names), stackedBars("Memory of the process", groups, BYTES),
    html("p", {}, "The upright line is the kernel's own figure."),
    asTable("Memory of the process", ["run", ...names, "sum", "process", "difference"], rows)];
}

heading();
overview();
section("runs", runsTable());
section("state", stateSection());
section("theory", theorySection());
section("memory", timelineSection());
section("recomputation", recomputationSection());
section("tiers", tiersSection());
section("wire", wireSection());
section("time", timeSection());
section("losses", lossSection());
section("process", processSection());
listenForTips();
