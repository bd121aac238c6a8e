// Curves over time and over steps.

const PLOT = { left: 64, right: 10 };
const path = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

function yAxis(values, yOf, format, width) {
  return values.flatMap((value) => [
    line(PLOT.left, yOf(value), width - PLOT.right, yOf(value), "grid"),
    text(PLOT.left - 8, yOf(value) + 4, format(value), "tick", "end"),
  ]);
}

// What a timeline holds at each sample: {times, owners: [{name, bytes}] in use, totals, peak: index of the largest}.
function memoryOf(timeline) {
  const times = timeline.samples.map((sample) => sample[0]);
  const owners = timeline.owners
    .map((name, i) => ({ name, bytes: timeline.samples.map((sample) => sample[i + 1]) }))
    .filter((owner) => owner.bytes.some((bytes) => bytes > 0));
  const totals = timeline.samples.map((sample) => sum(sample.slice(1)));
  return { times, owners, totals, peak: totals.reduce((best, total, i) => (total > totals[best] ? i : best), 0) };
}

const phaseAt = (phases, time) => phases.find((phase) => phase.begin <= time && time < phase.end);

// A sample holds until the next one.
function area(lower, upper, xs, yOf) {
  const forward = [], back = [];
  xs.forEach((x, i) => {
    const next = xs[i + 1] ?? x;
    forward.push([x, yOf(upper[i])], [next, yOf(upper[i])]);
    back.push([x, yOf(lower[i])], [next, yOf(lower[i])]);
  });
  return `${path([...forward, ...back.reverse()])}Z`;
}

function areas(run, memory, xs, yOf) {
  let lower = memory.totals.map(() => 0);
  const keys = colourKeys(memory.owners.map((owner) => owner.name));
  return memory.owners.map(({ name, bytes }) => {
    const upper = lower.map((below, i) => below + bytes[i]);
    const node = svg("path", { d: area(lower, upper, xs, yOf), class: "piece area", fill: colour(keys.get(name)),
      "data-run": run.name, "data-part": name, "data-value": bytes[memory.peak] });
    lower = upper;
    return node;
  });
}

const spanRows = ({ begin, end }) => [["begins", humanSeconds(begin)], ["takes", humanSeconds(end - begin)]];

function phaseMarks(run, phases, xOf, height) {
  return phases.map((phase, i) => {
    const x = xOf(phase.begin), width = Math.max(1, xOf(phase.end) - x);
    const label = phase.phase.length * CHARACTER + 4 < width ? text(x + 5, 15, phase.phase, "soft") : null;
    const data = { run: run.name, part: "phase", name: phase.phase, value: phase.end - phase.begin };
    const cut = i ? line(x, 0, x, height, "cut") : null;
    return mark(phase.phase, spanRows(phase), data, rect(x, 0, width, 20, { class: "band" }), cut, label);
  });
}

const activityColours = (run) => colourKeys((run.timeline.activities ?? []).map((each) => each.name));

function activityMark(run, each, key, x, y, width) {
  const type = `inside${DARK.includes(key) ? " on-dark" : ""} ${key}`;
  const label = each.name.length * CHARACTER + 8 < width ? text(x + 5, y + 12, each.name, type) : null;
  const rows = [["thread", each.thread], ...spanRows(each)];
  const data = { run: run.name, part: "activity", name: each.name, value: each.end - each.begin };
  const shape = rect(x, y, width, 16, { class: "piece", fill: colour(key) });
  return mark([each.name, each.unit].filter(Boolean).join(" "), rows, data, shape, label);
}

// What each thread does, in a row a thread, the main one above.
function lanes(run, activities, xOf, top) {
  const keys = activityColours(run);
  const names = unique(activities.map((each) => each.thread));
  const threads = names.toSorted((a, b) => (b === "main") - (a === "main"));
  return threads.flatMap((thread, row) => {
    const y = top + row * 22;
    const own = activities.filter((each) => each.thread === thread)
      .toSorted((a, b) => a.begin - b.begin || b.end - a.end);  // what goes on within another lies over it
    const marks = own.map((each) => {
      const width = Math.max(1.5, xOf(each.end) - xOf(each.begin));
      return activityMark(run, each, keys.get(each.name), xOf(each.begin), y, width);
    });
    return [text(PLOT.left - 8, y + 12, shortened(thread, PLOT.left - 8), "soft", "end"), ...marks];
  });
}

function memoryTip(memory, phases, i) {
  const phase = phaseAt(phases, memory.times[i]);
  const held = memory.owners.filter((owner) => owner.bytes[i] > 0).reverse();
  return { title: `${humanSeconds(memory.times[i])}${phase ? `, ${phase.phase}` : ""}`,
    rows: [...held.map((owner) => [owner.name, humanBytes(owner.bytes[i])]), ["all", humanBytes(memory.totals[i])]] };
}

function peakLabel(memory, x, y, width) {
  const label = `peak ${humanBytes(memory.totals[memory.peak])}`;
  const anchor = x + label.length * CHARACTER > width ? "end" : "start";
  return [svg("circle", { cx: x, cy: y, r: 3.5, fill: "var(--ink)", class: "dot" }), text(x, y - 8, label, "", anchor)];
}

function timelinePlot(run) {
  const { phases = [], activities = [] } = run.timeline;
  const memory = memoryOf(run.timeline);
  const moments = [...memory.times, ...[...phases, ...activities].flatMap((each) => [each.begin, each.end])];
  const first = Math.min(...moments), last = Math.max(...moments), most = Math.max(...memory.totals, 1);
  const rows = unique(activities.map((each) => each.thread)).length;
  const tipAt = (i) => memoryTip(memory, phases, i);
  return chart((width) => {
    const plot = { left: PLOT.left, top: 42, width: width - PLOT.left - PLOT.right, height: 230 };
    const bottom = plot.top + plot.height, end = bottom + 8 + rows * 22;
    const xOf = (time) => plot.left + ((time - first) / (last - first || 1)) * plot.width;
    const yOf = (bytes) => bottom - (bytes / most) * plot.height;
    const xs = memory.times.map(xOf);
    const time = SECONDS.ticks(last, Math.max(2, Math.floor(plot.width / 110)), first);
    return chartSvg(`Memory within a step, ${run.name}`, width, end + 20,
      ...yAxis(byteTicks(most, 4), yOf, byteTick(most), width), ...areas(run, memory, xs, yOf),
      ...phaseMarks(run, phases, xOf, bottom), ...peakLabel(memory, xs[memory.peak], yOf(most), width),
      ...lanes(run, activities, xOf, bottom + 10),
      ...time.map((at) => text(xOf(at), end + 14, SECONDS.tick(last)(at), "tick", "middle")),
      scrubber(`Bytes over the time of a step, ${run.name}`, plot, xs.length, (i) => xs[i], tipAt));
  });
}

const CURVE_KEYS = ["ink", "curve1", "curve2", "curve3", "curve4", "curve5"];
const CURVE_DASHES = ["", "7 4", "2 3", "9 3 2 3"];
const cycle = (values, i) => values[i % values.length];
const curveStyle = (i) => ({ key: cycle(CURVE_KEYS, i), dash: cycle(CURVE_DASHES, i) });

// Breaks where a loss is not a number.
function curvePath(losses, xOf, yOf) {
  const pieces = [[]];
  losses.forEach((loss, i) => (isNumber(loss) ? pieces.at(-1).push([xOf(i), yOf(loss)]) : pieces.push([])));
  const drawn = pieces.filter((points) => points.length);
  return drawn.map((points) => path(points.length > 1 ? points : [...points, ...points])).join("");
}

const evaluationsOf = (group) => group.runs[0].evaluations ?? [];

function evaluationMarks(groups, xOf, yOf) {
  return groups.flatMap((group, i) => {
    const finite = evaluationsOf(group).filter((each) => isNumber(each.loss));
    return finite.map(({ step, loss }) => {
      const data = { run: group.runs[0].name, part: "evaluation", value: loss };
      const dot = { cx: xOf(step - 1), cy: yOf(loss), r: 5, fill: colour(curveStyle(i).key), class: "dot" };
      const rows = [[listed(group.runs), lossText(loss)]];
      return mark(`Evaluation after step ${separated(step)}`, rows, data, svg("circle", dot));
    });
  });
}

function lossTip(groups, i) {
  const there = groups.filter((group) => i < group.losses.length);
  const rows = there.map((group) => [listed(group.runs), lossText(group.losses[i])]);
  return { title: `Step ${separated(i + 1)}`, rows };
}

// The first step, and round ones.
function stepTicks(steps, count) {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, steps / count)));
  const every = power * [1, 2, 5, 10].find((each) => each * power * count >= steps);
  const round = Array.from({ length: Math.floor(steps / every) }, (_, i) => (i + 1) * every);
  return unique([1, ...round]);
}

function lossPlot(groups) {
  const evaluated = groups.flatMap(evaluationsOf).map((each) => each.loss);
  const finite = [...groups.flatMap((group) => group.losses), ...evaluated].filter(isNumber);
  const steps = Math.max(...groups.map((group) => group.losses.length));
  const low = Math.min(...finite, Infinity), high = Math.max(...finite, -Infinity);
  const margin = (high - low || Math.abs(high) || 1) * 0.06;
  const from = finite.length ? low - margin : 0, to = finite.length ? high + margin : 1;
  return chart((width) => {
    const plot = { left: PLOT.left, top: 10, width: width - PLOT.left - PLOT.right - 8, height: 230 };
    const bottom = plot.top + plot.height;
    const xOf = (i) => plot.left + (steps > 1 ? i / (steps - 1) : 0.5) * plot.width;
    const yOf = (loss) => bottom - ((loss - from) / (to - from)) * plot.height;
    const at = stepTicks(steps, Math.max(2, Math.floor(plot.width / 90)));
    const marks = groups.map((group, i) => {
      const { key, dash } = curveStyle(i);
      const style = { class: "curve", stroke: colour(key), "stroke-dasharray": dash || "none" };
      return svg("path", { d: curvePath(group.losses, xOf, yOf), ...style, "data-runs": listed(group.runs) });
    });
    return chartSvg("Losses over steps", width, bottom + 24,
      ...yAxis(finite.length ? ticks(to, 5, 1, from) : [], yOf, (value) => +value.toPrecision(6), width), ...marks,
      ...at.map((step) => text(xOf(step - 1), bottom + 18, separated(step), "tick", "middle")),
      scrubber("Losses over steps", plot, steps, xOf, (i) => lossTip(groups, i)), ...evaluationMarks(groups, xOf, yOf));
  });
}
