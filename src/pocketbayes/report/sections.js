"use strict";
// The parts of the report. Each says whether it has anything to show, and builds it from the runs that are switched on.

const report = JSON.parse(document.getElementById("data").textContent);
const runs = report.runs;
const hidden = new Set();
const shown = () => runs.map((run, index) => [run, index]).filter(([, index]) => !hidden.has(index));
const evaluated = (part) => shown().filter(([run]) => part(run.evaluation));
const grid = (...children) => h("div", { class: "grid" }, ...children);
const smalls = (...children) => h("div", { class: "grid smalls" }, ...children);
const heading = (title, about) => h("div", { class: "heading" }, h("h2", {}, title), about ? h("p", {}, about) : null);
const unique = (values) => [...new Set(values)];
const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const entries = (value) => (isObject(value) ? Object.entries(value) : []);
const list = (value) => (Array.isArray(value) ? value : []);
const swatch = (index) => h("i", { class: "swatch", style: `background:${runColour(index)}`, "aria-hidden": "true" });

/** Rows of choices above a part that is built anew whenever one of them changes. */
function choosing(choices, build) {
  const body = h("div", { class: "stack" });
  const state = {};
  const redo = () => body.replaceChildren(...[build(state)].flat(Infinity).filter(Boolean));
  const controls = choices
    .filter(({ options }) => options.length)
    .map(({ name, label, options }) => {
      state[name] = options[0][0];
      const select = h("select", { change: () => { state[name] = select.value; redo(); } }, options.map(([value, text]) => h("option", { value }, text)));
      return options.length > 1 ? h("label", { class: "choice" }, h("span", {}, label), select) : null;
    });
  redo();
  return h("div", { class: "stack" }, controls.some(Boolean) ? h("div", { class: "controls" }, controls) : null, body);
}

// -- overview -------------------------------------------------------------------------------------------------------

function overview() {
  const { columns, rows } = report.leaderboard;
  const parts = [highlights(columns, rows), leaderboard(columns, rows), pareto()];
  if (report.seeds.length) parts.push(seedTable());
  if (report.pairs.length) parts.push(pairTable());
  const broken = runs.map((run, index) => [run, index]).filter(([run]) => run.problems.length);
  if (broken.length) {
    const items = broken.map(([run, index]) => h("li", {}, swatch(index), h("b", {}, run.name), ": ", run.problems.join("; ")));
    parts.push(h("details", { class: "card problems" }, h("summary", {}, `Not everything was there (${broken.length} of ${runs.length} runs)`), h("ul", {}, items)));
  }
  return parts;
}

function highlights(columns, rows) {
  const wanted = { accuracy: "Highest accuracy", miou: "Highest mIoU", nll: "Lowest NLL", rmse: "Lowest RMSE", ece: "Lowest ECE", bytes: "Smallest file", latency: "Fastest answer" };
  if (runs.length < 2 || unique(rows.map((row) => row.data)).length > 1) return null;
  const cards = columns
    .filter((column) => wanted[column.key])
    .map((column) => {
      const winners = rows.filter((row) => row.best.includes(column.key));
      if (!winners.length) return null;
      const names = winners.map((row) => runs[row.run].name);
      const text = names.length > 2 ? `${names.length} runs` : names.join(", ");
      return h("div", { class: "card high", title: names.join(", ") }, h("span", {}, wanted[column.key]), h("strong", {}, write(column.kind, winners[0].values[column.key])), h("em", {}, swatch(winners[0].run), text));
    });
  return h("div", { class: "highs" }, cards);
}

function leaderboard(columns, rows) {
  const withData = unique(rows.map((row) => row.data)).length > 1;
  const body = h("tbody", {});
  const heads = [];
  let order = { key: null, down: false };
  const value = (row, key) => (key === "name" ? runs[row.run].name : row.values[key]);
  const fillBody = () => {
    const sorted = [...rows];
    if (order.key !== null) {
      sorted.sort((one, two) => {
        const [a, b] = [value(one, order.key), value(two, order.key)];
        if (a === undefined || b === undefined) return (a === undefined) - (b === undefined);
        const sign = typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b;
        return order.down ? -sign : sign;
      });
    }
    body.replaceChildren(...sorted.map((row) => boardRow(row, columns, withData)));
  };
  const sortBy = (key, title, first) => {
    order = { key, down: order.key === key ? !order.down : first };
    heads.forEach(([head, name]) => head.setAttribute("aria-sort", name === key ? (order.down ? "descending" : "ascending") : "none"));
    fillBody();
    say(`sorted by ${title}, ${order.down ? "descending" : "ascending"}`);
  };
  const head = (key, title, about, first) => {
    const cell = h("th", { scope: "col", "aria-sort": "none" }, h("button", { type: "button", title: about, click: () => sortBy(key, title, first) }, title));
    heads.push([cell, key]);
    return cell;
  };
  const top = h("tr", {}, head("name", "run", "The run", false), withData ? h("th", { scope: "col" }, "data") : null, columns.map((c) => head(c.key, c.title, c.about, c.better === "high")));
  fillBody();
  const data = unique(rows.map((row) => row.data).filter(Boolean));
  const title = h("caption", {}, "Leaderboard", h("span", {}, [data.length === 1 ? `measured on ${data[0]} data` : null, runs.length > 1 ? "best values marked · click a heading to sort" : null].filter(Boolean).join(" · ")));
  return h("div", { class: "card board scroll", tabindex: 0, role: "region", "aria-label": "Leaderboard" }, h("table", { id: "leaderboard" }, title, h("thead", {}, top), body));
}

function boardRow(row, columns, withData) {
  const run = runs[row.run];
  const cells = columns.map((column) => {
    const best = row.best.includes(column.key);
    return h("td", { class: best ? "best" : null }, write(column.kind, row.values[column.key]), best ? h("span", { class: "unseen" }, " (best)") : null);
  });
  const name = h("th", { scope: "row", title: run.about || run.path }, swatch(row.run), run.name, run.method ? h("small", {}, run.method) : null);
  return h("tr", { "data-run": row.run }, name, withData ? h("td", { class: "words" }, row.data || "–") : null, cells);
}

function pareto() {
  const rows = report.leaderboard.rows.filter((row) => !hidden.has(row.run));
  const measure = ["nll", "rmse"].find((key) => rows.some((row) => isNumber(row.values[key])));
  if (!measure) return null;
  const title = { nll: "NLL", rmse: "RMSE" }[measure];
  const made = [
    ["bytes", `${title} against size`, "file size", "bytes"],
    ["latency", `${title} against time`, "time of one answer", "seconds"],
  ].map(([key, name, label, kind]) => {
    const points = rows.filter((row) => isNumber(row.values[key]) && isNumber(row.values[measure]));
    if (points.length < 2) return null;
    const xs = points.map((row) => row.values[key]);
    const ys = points.map((row) => row.values[measure]);
    return chart({
      title: name,
      about: "towards the lower left is better; on the line nothing is better in both",
      x: { label, log: true, domain: domainOf(xs, { log: true, air: 0.12 }), kind, tickKind: { bytes: "roundBytes", seconds: "roundSeconds" }[kind] },
      y: { label: title, domain: domainOf(ys, { air: 0.12 }), kind: "number" },
      series: [
        { name: "front", colour: "var(--faint)", dash: "5 4", step: true, points: front(points.map((row) => [row.values[key], row.values[measure]])), hit: false },
        ...points.map((row) => ({ name: runs[row.run].name, run: row.run, line: false, dots: true, radius: 6, points: [[row.values[key], row.values[measure]]] })),
      ],
      labels: points.map((row) => ({ x: row.values[key], y: row.values[measure], text: runs[row.run].name, run: row.run })),
      hits: points.map((row) => ({ x: row.values[key], y: row.values[measure], run: row.run, lines: [runs[row.run].name, `${title} ${write("number", row.values[measure])}`, `${label} ${write(kind, row.values[key])}`] })),
      table: { heads: ["run", label, title], rows: points.map((row) => [runs[row.run].name, write(kind, row.values[key]), write("number", row.values[measure])]) },
    });
  });
  return made.some(Boolean) ? grid(...made) : null;
}

/** The points that no other beats in both. */
function front(points) {
  const sorted = [...points].sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  let least = Infinity;
  return sorted.filter(([, y]) => (y < least ? ((least = y), true) : false));
}

const TESTED = { accuracy: ["accuracy", "percent"], nll: ["NLL", "number"], ece: ["ECE", "number"], brier: ["Brier score", "number"] };

function seedTable() {
  const keys = Object.keys(TESTED).filter((key) => report.seeds.some((group) => group.measures[key]));
  const rows = report.seeds.map(({ networks, measures }) => [
    `${runs[networks[0]].method || "?"}, ${networks.length} seeds`,
    ...keys.map((key) => (measures[key] ? `${write(TESTED[key][1], measures[key].mean)} ± ${write(TESTED[key][1], measures[key].high - measures[key].mean)}` : "–")),
  ]);
  const tests = report.anova.map(({ measure, f, p }) => `${TESTED[measure]?.[0] || measure}: F = ${write("short", f)}, p = ${write("short", p)}`);
  return h("div", { class: "card" }, heading("Means over seeds", "With 95 % intervals (Student's t)."), plainTable(["method", ...keys.map((key) => TESTED[key][0])], rows), tests.length ? h("p", { class: "hint" }, `One-way ANOVA between them: ${tests.join("; ")}.`) : null);
}

/** A table of all pairs: the row's measure minus the column's, marked where a paired test tells them apart. */
function pairTable() {
  const measures = unique(report.pairs.map((pair) => pair.measure)).sort((a, b) => (b === "nll") - (a === "nll"));
  const about = "Paired tests on the same images: McNemar's for accuracies, the paired t test for the others. Each cell is the row minus the column; only a pair with p < 0.05 after Holm's correction is called different, and the better of the two is marked. This speaks of these networks; of their methods, only several seeds can.";
  const build = ({ measure }) => {
    const pairs = report.pairs.filter((pair) => pair.measure === measure);
    const places = unique(pairs.flatMap(({ first, second }) => [first, second])).sort((a, b) => a - b);
    const kind = (TESTED[measure] || ["", "number"])[1];
    const cell = (row, column) => {
      const pair = pairs.find(({ first, second }) => (first === row && second === column) || (first === column && second === row));
      if (row === column || !pair) return h("span", { class: "hint" }, "·");
      const difference = pair.first === row ? pair.difference : -pair.difference;
      const state = pair.better === null ? "hint" : pair.better === row ? "better" : "worse";
      const words = `${runs[row].name} minus ${runs[column].name}: ${write(kind, difference)}, p = ${write("short", pair.p)} (${pair.test})`;
      return h("span", { class: state, title: words }, write(kind, difference), pair.better === row ? h("span", { class: "unseen" }, " better") : null);
    };
    return plainTable(["row − column", ...places.map((place) => runs[place].name)], places.map((row) => [h("span", {}, swatch(row), runs[row].name), ...places.map((column) => cell(row, column))]), "Differences between all pairs");
  };
  return h("div", { class: "card" }, heading("Is the difference real?", about), choosing([{ name: "measure", label: "Measure", options: measures.map((key) => [key, (TESTED[key] || [key])[0]]) }], build));
}

// -- calibration ----------------------------------------------------------------------------------------------------

function calibration() {
  const parts = [];
  const reliable = evaluated((e) => isObject(e.reliability));
  if (reliable.length) parts.push(heading("Reliability", "How often the network is right, by how sure it says it is. On the diagonal it is as right as it is sure; the shaded part is the gap."), smalls(...reliable.map(reliability)));
  const curves = evaluated((e) => isObject(e.risk_coverage));
  if (curves.length) parts.push(heading("Selective prediction", "The errors that remain when only the surest answers are given."), grid(riskCoverage(curves), temperatures(), humans()));
  else if (temperatures() || humans()) parts.push(grid(temperatures(), humans()));
  const boxed = evaluated((e) => entries(e.box).length);
  if (boxed.length) parts.push(heading("Confidence by class", "5, 25, 50, 75 and 95 % of the confidences."), smalls(...boxed.map(boxes)));
  return parts;
}

function reliability([run, index]) {
  const { confidence, accuracy, count } = run.evaluation.reliability;
  const n = list(count).length;
  const total = count.reduce((sum, c) => sum + (c || 0), 0) || 1;
  const bins = count.map((c, i) => ({ i, c, p: confidence[i], a: accuracy[i] })).filter(({ c, p, a }) => c > 0 && isNumber(p) && isNumber(a));
  const ece = run.evaluation.measures.ece;
  return chart({
    title: run.name,
    about: isNumber(ece) ? `ECE ${write("number", ece)}` : null,
    run: index,
    small: true,
    height: 230,
    x: { label: "confidence", domain: [0, 1], tickKind: "share", ticks: [0, 0.5, 1] },
    y: { domain: [-0.16, 1], ticks: [0, 0.5, 1], tickKind: "share" },
    bars: [
      ...bins.map(({ i, a }) => ({ x0: i / n, x1: (i + 1) / n, y0: 0, y1: a, inset: 1, round: 2, fill: runColour(index) })),
      ...bins.map(({ i, a, p }) => ({ class: "gap", x0: i / n, x1: (i + 1) / n, y0: a, y1: p, inset: 1 })),
      ...bins.map(({ i, c }) => ({ class: "counts", x0: i / n, x1: (i + 1) / n, y0: -0.15, y1: -0.15 + 0.12 * Math.sqrt(c / total), inset: 1 })),
    ],
    marks: [{ from: [0, 0], to: [1, 1] }],
    nearest: "x",
    hits: bins.map(({ i, c, p, a }) => ({ x: (i + 0.5) / n, y: a, run: index, lines: [`${run.name}: ${write("count", c)} images`, `confidence ${write("percent", p)}`, `accuracy ${write("percent", a)}`] })),
    table: { heads: ["confidence", "accuracy", "images"], rows: bins.map(({ c, p, a }) => [write("percent", p), write("percent", a), write("count", c)]) },
  });
}

function riskCoverage(curves) {
  const series = curves.map(([run, index]) => ({ name: run.name, run: index, points: list(run.evaluation.risk_coverage.coverage).map((c, i) => [c, run.evaluation.risk_coverage.risk[i]]) }));
  const risks = series.flatMap((one) => one.points.map((point) => point[1]));
  return chart({
    title: "Risk and coverage",
    about: "lower is better",
    x: { label: "answered", domain: [0, 1], kind: "share", tickKind: "share" },
    y: { label: "wrong among these", domain: domainOf(risks, { low: 0 }), kind: "percent", tickKind: "share" },
    series,
    nearest: "both",
    tableTitle: "Areas under the curves",
    table: { heads: ["run", "area"], rows: curves.map(([run]) => [run.name, write("number", run.evaluation.risk_coverage.area)]) },
  });
}

function temperatures() {
  const known = evaluated((e) => isObject(e.temperature));
  if (!known.length) return null;
  const rows = known.map(([run, index]) => {
    const { value, nll, ece } = run.evaluation.temperature;
    const own = run.evaluation.measures;
    return [h("span", {}, swatch(index), run.name), write("short", value), write("number", own.nll), write("number", nll), write("number", own.ece), write("number", ece)];
  });
  return h("div", { class: "card" }, h("h3", {}, "Beside temperature scaling"), h("p", { class: "hint" }, "One number, fitted on held-out images, as a baseline: what calibration alone would give. Above 1: the network was too sure."), plainTable(["run", "T", "NLL", "NLL with T", "ECE", "ECE with T"], rows));
}

function humans() {
  const known = evaluated((e) => isObject(e.humans));
  const keys = unique(known.flatMap(([run]) => entries(run.evaluation.humans).filter(([, v]) => isNumber(v)).map(([key]) => key)));
  if (!keys.length) return null;
  const rows = known.map(([run, index]) => [h("span", {}, swatch(index), run.name), ...keys.map((key) => write("number", run.evaluation.humans[key]))]);
  return h("div", { class: "card" }, h("h3", {}, "Beside people"), h("p", { class: "hint" }, "Where several people labelled each image: how the network's probabilities agree with theirs."), plainTable(["run", ...keys.map((key) => key.replaceAll("_", " "))], rows));
}

function boxes([run, index]) {
  const most = 25;
  const all = entries(run.evaluation.box).filter(([, q]) => list(q).length >= 5 && q.slice(0, 5).every(isNumber));
  const kept = [...all].sort((a, b) => a[1][2] - b[1][2]).slice(0, most);
  const rows = all.filter((row) => kept.includes(row));
  const mid = (i) => i + 0.5;
  const low = Math.min(Math.floor(10 * Math.min(...rows.map(([, q]) => q[0]))) / 10, 0.9);
  return chart({
    title: run.name,
    about: all.length > rows.length ? `the ${most} least certain of ${all.length} classes` : null,
    run: index,
    small: true,
    height: 50 + 22 * rows.length,
    x: { label: "confidence", domain: [low, 1], tickKind: "share", ticks: [low, (1 + low) / 2, 1] },
    y: { domain: [rows.length, 0], ticks: rows.map((_, i) => mid(i)), names: rows.map(([name]) => name) },
    marks: rows.flatMap(([, q], i) => [{ from: [q[0], mid(i)], to: [q[4], mid(i)], class: "whisker", colour: runColour(index) }]),
    bars: rows.map(([, q], i) => ({ x0: q[1], x1: q[3], y0: i + 0.22, y1: i + 0.78, round: 3, fill: runColour(index), class: "quartiles" })),
    series: [{ name: run.name, run: index, line: false, dots: true, radius: 3.2, points: rows.map(([, q], i) => [q[2], mid(i)]) }],
    nearest: "y",
    hits: rows.map(([name, q], i) => ({ x: q[2], y: mid(i), run: index, lines: [name, `median ${write("percent", q[2])}`, `half within ${write("percent", q[1])} to ${write("percent", q[3])}`, ...(isNumber(q[5]) ? [`${write("count", q[5])} images`] : [])] })),
    table: { heads: ["class", "5 %", "25 %", "median", "75 %", "95 %"], rows: rows.map(([name, q]) => [name, ...q.slice(0, 5).map((v) => write("percent", v))]) },
  });
}

// -- other data -----------------------------------------------------------------------------------------------------

function ood() {
  const sets = unique(runs.flatMap((run) => entries(run.evaluation.ood).map(([name]) => name)));
  const kinds = [["auroc", "AUROC (higher is better)"], ["aupr_in", "AUPR, own data found"], ["aupr_out", "AUPR, other data found"], ["fpr95", "FPR at 95 % (lower is better)"], ["fpr85", "FPR at 85 % (lower is better)"]];
  return [
    heading("Data it has never seen", "A network that knows what it does not know is less sure of them."),
    choosing([{ name: "kind", label: "Measure", options: kinds }], ({ kind }) => sets.map((name) => oodSet(name, kind))),
  ];
}

function oodSet(name, kind) {
  const known = evaluated((e) => isObject(e.ood) && isObject(e.ood[name]));
  const scores = unique(known.flatMap(([run]) => entries(run.evaluation.ood[name].scores).map(([score]) => score)));
  const low = kind.startsWith("fpr");
  const value = (run, score) => (run.evaluation.ood[name].scores?.[score] || {})[kind];
  const values = known.flatMap(([run]) => scores.map((score) => value(run, score))).filter(isNumber);
  const best = low ? Math.min(...values) : Math.max(...values);
  const rows = known.map(([run, index]) => [
    h("span", {}, swatch(index), run.name),
    ...scores.map((score) => {
      const v = value(run, score);
      return h("span", { class: values.length > 1 && v === best ? "best" : null }, write("percent", v));
    }),
  ]);
  const drawn = known.filter(([run]) => isObject(run.evaluation.ood[name].histogram));
  return [
    h("div", { class: "card" }, h("h3", {}, name), plainTable(["run", ...scores.map((score) => `by ${score}`)], rows, `Telling ${name} apart`)),
    drawn.length ? smalls(...drawn.map(([run, index]) => histogram(run, index, name))) : null,
  ];
}

function histogram(run, index, name) {
  const { score, edges, inside, outside } = run.evaluation.ood[name].histogram;
  const steps = (counts) => {
    const total = counts.reduce((sum, c) => sum + c, 0) || 1;
    // Heights are square roots: most images crowd in one bin, and the others are to be seen beside it.
    return [[edges[0], 0], ...counts.map((c, i) => [edges[i], Math.sqrt(c / total)]), [edges[counts.length], 0]];
  };
  // A step from one height to the next needs the corner at the next edge.
  const stairs = (points) => points.flatMap((point, i) => (i ? [[point[0], points[i - 1][1]], point] : [point]));
  const own = run.data || "own data";
  const two = [[own, inside, runColour(index)], [name, outside, "var(--ink)"]];
  const tops = two.flatMap(([, counts]) => steps(counts).map((point) => point[1]));
  return chart({
    title: run.name,
    run: index,
    small: true,
    height: 220,
    key: two.map(([title, , colour]) => [title, colour]),
    x: { label: String(score), domain: [edges[0], edges.at(-1)] },
    y: { domain: [0, 1.05 * Math.max(...tops)], ticks: [0, 0.01, 0.05, 0.2, 0.5, 1].map(Math.sqrt).filter((v) => v <= 1.05 * Math.max(...tops)), write: (v) => write("share", v * v) },
    series: two.map(([title, counts, colour]) => ({ name: title, colour, area: true, points: stairs(steps(counts)) })),
    nearest: "x",
    hits: inside.map((_, i) => ({ x: (edges[i] + edges[i + 1]) / 2, y: Math.max(steps(inside)[i + 1][1], steps(outside)[i + 1][1]), run: index, lines: [`${score} ${write("short", edges[i])} to ${write("short", edges[i + 1])}`, `${own}: ${write("count", inside[i])}`, `${name}: ${write("count", outside[i])}`] })),
    table: { heads: [String(score), own, name], rows: inside.map((_, i) => [`${write("short", edges[i])} – ${write("short", edges[i + 1])}`, write("count", inside[i]), write("count", outside[i])]) },
  });
}

// -- shift ----------------------------------------------------------------------------------------------------------

const SHIFT_MEASURES = [["accuracy", "accuracy"], ["nll", "NLL"], ["ece", "ECE"], ["brier", "Brier score"], ["entropy", "entropy"], ["epistemic", "epistemic uncertainty"], ["apart", "entropy: right and wrong answers apart"]];

function shift() {
  const names = unique(runs.flatMap((run) => entries(run.evaluation.shift?.corruptions).map(([name]) => name)));
  const rows = runs.flatMap((run) => [...entries(run.evaluation.shift?.corruptions).flatMap(([, r]) => list(r)), ...list(run.evaluation.shift?.rotation), ...list(run.evaluation.shift?.noise)]);
  const known = SHIFT_MEASURES.filter(([key]) => rows.some((row) => isNumber(row[key === "apart" ? "entropy_right" : key])));
  const means = runs.some((run) => list(run.evaluation.shift?.corruptions_mean?.["by severity"]).length || entries(run.evaluation.shift?.corruptions).length);
  return [
    heading("When the data change", "Corrupted, turned or noisy images: a trustworthy network gets less sure as it gets more often wrong."),
    choosing([{ name: "measure", label: "Measure", options: known }], ({ measure }) => {
      const parts = [means ? shiftChart("Mean over corruptions", measure, (s) => severities(meanBySeverity(s)), "severity") : null, shiftChart("Rotation", measure, (s) => list(s.rotation).map((row) => [row.degrees, row]), "degrees"), shiftChart("Gaussian noise", measure, (s) => list(s.noise).map((row) => [row.db, row]), "signal to noise, dB")];
      const each = names.map((name) => shiftChart(name.replaceAll("_", " "), measure, (s) => severities(s.corruptions?.[name]), null, true));
      return [grid(...parts), corruptionMeans(), names.length ? h("div", { class: "stack" }, heading("One by one", "by severity, 0 the unchanged images"), smalls(...each)) : null];
    }),
  ];
}

const severities = (rows) => list(rows).map((row, i) => [isNumber(row.severity) ? row.severity : i + 1, row]);

/** The mean of all corruptions at each severity: as the evaluation says, else of what is there. */
function meanBySeverity(part) {
  const given = list(part.corruptions_mean?.["by severity"]);
  if (given.length) return given;
  const all = entries(part.corruptions).map(([, rows]) => list(rows));
  return (all[0] || []).map((row, i) => {
    const mean = { severity: row.severity };
    for (const key of Object.keys(row)) {
      const values = all.map((rows) => rows[i]?.[key]).filter(isNumber);
      if (key !== "severity" && values.length) mean[key] = values.reduce((sum, v) => sum + v, 0) / values.length;
    }
    return mean;
  });
}

function shiftChart(title, measure, rowsOf, label, small) {
  const apart = measure === "apart";
  const keys = apart ? [["entropy_right", "right", ""], ["entropy_wrong", "wrong", "6 4"]] : [[measure, "", null]];
  const severity = label === "severity" || label === null;
  const series = evaluated((e) => isObject(e.shift)).flatMap(([run, index]) =>
    keys.map(([key, which, dash]) => {
      const points = rowsOf(run.evaluation.shift).map(([x, row]) => [x, row[key]]).filter((point) => point.every(isNumber)).sort((a, b) => a[0] - b[0]);
      // The unchanged images are severity 0: where the curve starts.
      const clean = run.evaluation.measures?.[key];
      if (severity && isNumber(clean) && points.length && points[0][0] > 0) points.unshift([0, clean]);
      return { name: which ? `${run.name}, ${which} answers` : run.name, what: SHIFT_MEASURES.find(([k]) => k === measure)[1].split(":")[0], run: index, dash: dash ?? undefined, dots: !small, points };
    }),
  ).filter((one) => one.points.length);
  if (!series.length) return null;
  const points = series.flatMap((one) => one.points);
  const kind = measure === "accuracy" ? "percent" : "number";
  return chart({
    title,
    small,
    height: small ? 150 : undefined,
    key: apart && !small ? [["right answers", "var(--ink)"], ["wrong answers", "var(--ink)", "6 4"]] : null,
    x: { label, domain: domainOf(points.map((p) => p[0]), { air: 0.02 }), ticks: severity ? unique(points.map((p) => p[0])).sort((a, b) => a - b) : label === "degrees" ? [-180, -135, -90, -45, 0, 45, 90, 135, 180, 270, 360].filter((v) => points.some((p) => p[0] <= v) && points.some((p) => p[0] >= v)) : undefined },
    y: { label: small ? null : SHIFT_MEASURES.find(([key]) => key === measure)[1].split(":")[0], domain: domainOf(points.map((p) => p[1])), kind, tickKind: measure === "accuracy" ? "share" : "short" },
    series,
  });
}

function corruptionMeans() {
  const known = evaluated((e) => entries(e.shift?.corruptions_mean).some(([, v]) => isObject(v)));
  if (!known.length) return null;
  const kinds = unique(known.flatMap(([run]) => entries(run.evaluation.shift.corruptions_mean).filter(([, v]) => isObject(v)).map(([k]) => k)));
  const measures = [["accuracy", "accuracy", "percent"], ["nll", "NLL", "number"], ["ece", "ECE", "number"], ["brier", "Brier", "number"]];
  const rows = known.map(([run, index]) => [h("span", {}, swatch(index), run.name), ...kinds.flatMap((kind) => measures.map(([key, , how]) => write(how, run.evaluation.shift.corruptions_mean[kind]?.[key])))]);
  return h("div", { class: "card" }, h("h3", {}, "Means over all severities"), plainTable(["run", ...kinds.flatMap((kind) => measures.map(([, title]) => `${title}, mean ${kind}`))], rows));
}

// -- training -------------------------------------------------------------------------------------------------------

function training() {
  const known = shown().filter(([run]) => run.epochs.length);
  const curves = [["nll", "NLL", "of the training data; validation dashed, where there is any"], ["kl", "KL to the prior", "in nats, a sum over all random weights; not part of the NLL"]];
  const made = curves.map(([key, title, about]) => {
    const pick = (run, name) => run.epochs.map((row, i) => [i + 1, row[name], row]).filter(([, v]) => isNumber(v) && (key !== "kl" || v > 0));
    const more = ([, , row]) => [`stage ${row.stage || "?"}, epoch ${row.epoch ?? "?"}`];
    const series = known.flatMap(([run, index]) => [
      { name: run.name, run: index, points: pick(run, key), more },
      { name: `${run.name}, validation`, run: index, dash: "5 4", points: pick(run, `val_${key}`), more },
    ]).filter((one) => one.points.length);
    if (!series.length) return null;
    const ys = series.flatMap((one) => one.points.map((p) => p[1]));
    const log = Math.min(...ys) > 0 && Math.max(...ys) / Math.min(...ys) > 20;
    return chart({ title, about, x: { label: "epochs, all stages", domain: domainOf(series.flatMap((one) => one.points.map((p) => p[0])), { air: 0.01 }) }, y: { label: `${title}${key === "kl" ? ", nats" : ""}${log ? " (log)" : ""}`, domain: domainOf(ys, { log }), log, kind: "number", tickKind: "round" }, series });
  });
  return [heading("Training", "What the data say (NLL) and what the prior asks (KL), apart."), grid(...made)];
}

// -- weights --------------------------------------------------------------------------------------------------------

function weights() {
  const known = shown().filter(([run]) => list(run.weights.layers).length);
  const cards = known.map(([run, index]) => layerCard(run, index));
  const maps = known.filter(([run]) => run.weights.sigma);
  return [
    heading("Layer by layer", "How many weights are there at all, how many of them are random, and how widely these spread."),
    h("div", { class: "grid wide" }, cards),
    maps.length ? heading("Uncertainty of the first layer", "The std of every weight, a tile for each unit: bright is unsure, grey a point value.") : null,
    maps.length ? grid(...maps.map(([run, index]) => sigmaMap(run, index))) : null,
  ];
}

function layerCard(run, index) {
  const { layers, storage, stored, points, networks, notes } = run.weights;
  const colour = runColour(index);
  const bar = (fraction) => h("span", { class: "cellbar" }, meter(fraction, colour), h("span", {}, write("share", fraction)));
  const rows = layers.map((layer) => [layer.name, layer.shape.join("×"), bar(layer.present), bar(layer.random), write("short", layer.std)]);
  const facts = [...entries(stored).map(([kind, count]) => `${write("count", count)} ${kind}`), `${write("count", points)} point values`].join(" · ");
  return h(
    "section",
    { class: "card", "data-run": index },
    h("h3", {}, swatch(index), run.name, h("small", {}, networks > 1 ? `${storage}, first of ${networks} networks` : storage)),
    h("p", { class: "hint" }, facts),
    h("div", { class: "layers" }, plainTable(["layer", "shape", "present", "Bayesian", "mean std"], rows, `Layers of ${run.name}`)),
    list(notes).length ? h("p", { class: "hint" }, notes.join("; ")) : null,
  );
}

const STOPS = [[48, 18, 59], [70, 107, 227], [40, 187, 236], [49, 242, 153], [162, 252, 60], [237, 208, 58], [251, 128, 34], [210, 49, 5]];

/** A colour between dark blue and red for a number from 0 to 1. */
function heat(fraction) {
  const at = Math.min(Math.max(fraction, 0), 1) * (STOPS.length - 1);
  const i = Math.min(Math.floor(at), STOPS.length - 2);
  return STOPS[i].map((v, c) => Math.round(v + (at - i) * (STOPS[i + 1][c] - v)));
}

function sigmaMap(run, index) {
  const { name, shape, units, shown: count, rows, columns, low, high, codes } = run.weights.sigma;
  const bytes = Uint8Array.from(atob(codes), (c) => c.charCodeAt(0));
  const zoom = Math.max(Math.floor(480 / columns), 1);
  const canvas = h("canvas", { class: "heat", width: columns, height: rows, role: "img", "aria-label": `Stds of ${name} of ${run.name}, from ${write("short", low)} to ${write("short", high)}` });
  canvas.style.width = `${columns * zoom}px`;
  const paint = canvas.getContext("2d");
  const image = paint.createImageData(columns, rows);
  bytes.forEach((code, i) => {
    const [r, g, b] = code < 2 ? [128, 128, 140] : heat((code - 2) / 253);
    image.data.set([r, g, b, code === 0 ? 0 : code === 1 ? 70 : 255], 4 * i);
  });
  paint.putImageData(image, 0, 0);
  canvas.addEventListener("pointermove", (event) => {
    const frame = canvas.getBoundingClientRect();
    const [column, row] = [Math.floor(((event.clientX - frame.left) / frame.width) * columns), Math.floor(((event.clientY - frame.top) / frame.height) * rows)];
    const code = bytes[row * columns + column];
    if (!code) tip.hide();
    else tip.show([code === 1 ? "a point value" : `std ${write("short", low + ((code - 2) / 253) * (high - low))}`], event.clientX, event.clientY, index);
  });
  canvas.addEventListener("pointerleave", () => tip.hide());
  const ramp = h("i", { class: "ramp", "aria-hidden": "true", style: `background:linear-gradient(90deg,${STOPS.map((rgb) => `rgb(${rgb})`)})` });
  const about = `${name}, ${shape.join(" × ")}${count < units ? `, the first ${count} of ${units} units` : ""}`;
  return h("figure", { class: "chart", "data-run": index }, h("figcaption", {}, h("strong", {}, run.name), h("span", {}, about)), h("div", { class: "heatbox" }, canvas), h("div", { class: "ramps" }, write("short", low), ramp, write("short", high)));
}

function plane() {
  const known = shown().filter(([run]) => run.weights.plane);
  const options = known.map(([run, index]) => [String(index), run.name]);
  return [
    heading("The plane", "Every weight shares a Gaussian at its mean and std with others, whatever their layer."),
    choosing([{ name: "run", label: "Network", options }], ({ run }) => (run === undefined ? null : planeView(runs[Number(run)], Number(run)))),
  ];
}

// -- images and recipes ---------------------------------------------------------------------------------------------

function images() {
  const known = evaluated((e) => entries(e.images).some(([, items]) => list(items).length));
  const options = known.map(([run, index]) => [String(index), run.name]);
  return [
    heading("What it is sure of, and what not", "Test images by the entropy of the answer."),
    choosing([{ name: "run", label: "Network", options }], ({ run }) => (run === undefined ? null : entries(runs[Number(run)].evaluation.images).flatMap(([title, items]) => [h("h3", {}, title), h("ul", { class: "gallery" }, list(items).map((item) => imageCard(item, runs[Number(run)])))]))),
  ];
}

function imageCard(item, run) {
  const names = list(run.weights.class_names);
  const nameOf = (label) => names[label] ?? String(label);
  const right = item.label === item.predicted;
  const picture = h("img", { src: `data:image/png;base64,${item.png}`, alt: `test image ${item.index}, a ${nameOf(item.label)}`, loading: "lazy" });
  return h(
    "li",
    { class: `card ${right ? "right" : "wrong"}` },
    picture,
    h("b", {}, nameOf(item.predicted), h("span", { class: "verdict" }, right ? " ✓" : " ✗"), h("span", { class: "unseen" }, right ? " (right)" : " (wrong)")),
    right ? h("span", { class: "hint" }, "as labelled") : h("span", { class: "hint" }, "labelled ", nameOf(item.label)),
    meter(item.confidence),
    h("small", {}, `${write("share", item.confidence)} sure · ${write("short", item.entropy)} nats`),
  );
}

function recipes() {
  const cards = shown().map(([run, index]) => {
    const e = run.evaluation;
    const facts = [
      ["path", run.path],
      ["model", run.weights.model || e.model],
      ["storage", run.weights.storage],
      ["measured on", [run.data, e.split].filter(Boolean).join(", ") || null],
      ["an answer takes", run.cost.samples ? `up to ${run.cost.samples} passes, ${e.propagation || "default"} propagation` : null],
    ].filter(([, value]) => value);
    return h(
      "section",
      { class: "card", "data-run": index },
      h("h3", {}, swatch(index), run.name, run.method ? h("small", {}, run.method) : null),
      h("dl", {}, facts.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
      run.recipe ? h("pre", { tabindex: 0 }, run.recipe) : h("p", { class: "hint" }, "no recipe"),
    );
  });
  const versions = h("section", { class: "card" }, h("h3", {}, "Made with"), h("dl", {}, entries(report.versions).flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])));
  return [heading("Recipes and versions", "All it takes to make these networks again: pocketbayes train RECIPE."), h("div", { class: "grid wide" }, cards, versions)];
}

const some = (test) => runs.some((run) => test(run.evaluation, run));
const SECTIONS = [
  { id: "overview", title: "Overview", has: () => true, build: overview },
  { id: "calibration", title: "Calibration", has: () => some((e) => isObject(e.reliability) || isObject(e.risk_coverage) || isObject(e.temperature) || entries(e.box).length), build: calibration },
  { id: "ood", title: "Unknown data", has: () => some((e) => entries(e.ood).length), build: ood },
  { id: "shift", title: "Shift", has: () => some((e) => entries(e.shift).length), build: shift },
  { id: "images", title: "Images", has: () => some((e) => entries(e.images).some(([, items]) => list(items).length)), build: images },
  { id: "training", title: "Training", has: () => some((_, run) => run.epochs.length), build: training },
  { id: "weights", title: "Weights", has: () => some((_, run) => list(run.weights.layers).length), build: weights },
  { id: "plane", title: "Plane", has: () => some((_, run) => run.weights.plane), build: plane },
  { id: "recipes", title: "Recipes", has: () => true, build: recipes },
];
