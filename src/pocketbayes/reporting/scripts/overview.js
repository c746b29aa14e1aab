"use strict";
// Highlights, the leaderboard, what a smaller or faster network costs, and whether differences are real.

function overview() {
  const { columns, rows } = report.leaderboard;
  const parts = [highlights(columns, rows), leaderboard(columns, rows), pareto()];
  if (report.seeds.length) parts.push(seedTable());
  if (report.pairs.length) parts.push(pairTable());
  const broken = runs.map((run, index) => [run, index]).filter(([run]) => run.problems.length);
  if (broken.length) {
    const items = broken.map(([run, index]) =>
      h("li", {}, swatch(index), h("b", {}, run.name), ": ", run.problems.join("; ")),
    );
    parts.push(
      h(
        "details",
        { class: "card problems" },
        h("summary", {}, `Missing or unreadable parts (${broken.length} of ${runs.length} runs)`),
        h("ul", {}, items),
      ),
    );
  }
  return parts;
}

function highlights(columns, rows) {
  const wanted = {
    accuracy: "Highest accuracy",
    miou: "Highest mIoU",
    nll: "Lowest NLL",
    rmse: "Lowest RMSE",
    ece: "Lowest ECE",
    bytes: "Smallest file",
    latency: "Fastest prediction",
  };
  if (runs.length < 2 || dataOf(rows).length > 1) return null;
  const cards = columns
    .filter((column) => wanted[column.key])
    .map((column) => {
      const winners = rows.filter((row) => row.best.includes(column.key));
      if (!winners.length) return null;
      const names = winners.map((row) => runs[row.run].name);
      const text = names.length > 2 ? `${names.length} runs` : names.join(", ");
      return h(
        "div",
        { class: "card high", title: names.join(", ") },
        h("span", {}, wanted[column.key]),
        h("strong", {}, write(column.kind, winners[0].values[column.key])),
        h("em", {}, swatch(winners[0].run), text),
      );
    });
  return h("div", { class: "highs" }, cards);
}

// What the runs were measured on; an unfinished run on nothing.
function dataOf(rows) {
  return unique(rows.map((row) => row.data).filter(Boolean));
}

function leaderboard(columns, rows) {
  const withData = dataOf(rows).length > 1;
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
    heads.forEach(([head, name]) =>
      head.setAttribute("aria-sort", name === key ? (order.down ? "descending" : "ascending") : "none"),
    );
    fillBody();
    say(`sorted by ${title}, ${order.down ? "descending" : "ascending"}`);
  };
  const head = (key, title, about, first) => {
    const cell = h(
      "th",
      { scope: "col", "aria-sort": "none" },
      h("button", { type: "button", title: about, click: () => sortBy(key, title, first) }, title),
    );
    heads.push([cell, key]);
    return cell;
  };
  const top = h(
    "tr",
    {},
    head("name", "run", "The run", false),
    withData ? h("th", { scope: "col" }, "data") : null,
    columns.map((c) => head(c.key, c.title, c.about, c.better === "high")),
  );
  fillBody();
  const data = dataOf(rows);
  const title = h(
    "caption",
    {},
    "Leaderboard",
    h(
      "span",
      {},
      [
        data.length === 1 ? `measured on ${data[0]}` : null,
        runs.length > 1 ? "best values marked · click a heading to sort" : null,
      ]
        .filter(Boolean)
        .join(" · "),
    ),
  );
  return h(
    "div",
    { class: "card board scroll", tabindex: 0, role: "region", "aria-label": "Leaderboard" },
    h("table", { id: "leaderboard" }, title, h("thead", {}, top), body),
    meanings(columns),
  );
}

/** What the columns mean, for readers without a mouse to point at the headings. */
function meanings(columns) {
  return h(
    "details",
    { class: "meanings" },
    h("summary", {}, "What the columns mean"),
    h(
      "dl",
      {},
      columns.filter((c) => c.about).flatMap((c) => [h("dt", {}, c.title), h("dd", {}, c.about)]),
    ),
  );
}

function boardRow(row, columns, withData) {
  const run = runs[row.run];
  const cells = columns.map((column) => {
    const best = row.best.includes(column.key);
    return h(
      "td",
      { class: best ? "best" : null },
      write(column.kind, row.values[column.key]),
      best ? h("span", { class: "unseen" }, " (best)") : null,
    );
  });
  const name = h(
    "th",
    { scope: "row", title: run.about || run.path },
    swatch(row.run),
    run.name,
    run.method ? h("small", {}, run.method) : null,
    row.by ? h("small", { class: "by" }, row.by) : null,
  );
  return h("tr", { "data-run": row.run }, name, withData ? h("td", { class: "words" }, row.data || "–") : null, cells);
}

function pareto() {
  const rows = report.leaderboard.rows.filter((row) => !hidden.has(row.run));
  const measure = ["nll", "rmse"].find((key) => rows.some((row) => isNumber(row.values[key])));
  if (!measure) return null;
  const title = { nll: "NLL", rmse: "RMSE" }[measure];
  const made = [
    ["bytes", `${title} against size`, "file size", "bytes"],
    ["latency", `${title} against time`, "time of one prediction", "seconds"],
  ].map(([key, name, label, kind]) => {
    const points = rows.filter((row) => isNumber(row.values[key]) && isNumber(row.values[measure]));
    if (points.length < 2) return null;
    const xs = points.map((row) => row.values[key]);
    const ys = points.map((row) => row.values[measure]);
    return chart({
      title: name,
      about: "lower left is better; no run beats those on the line in both",
      x: {
        label,
        log: true,
        domain: domainOf(xs, { log: true, air: 0.12 }),
        kind,
        tickKind: { bytes: "roundBytes", seconds: "roundSeconds" }[kind],
      },
      y: { label: title, domain: domainOf(ys, { air: 0.12 }), kind: "number" },
      series: [
        {
          name: "front",
          colour: "var(--faint)",
          dash: "5 4",
          step: true,
          points: front(points.map((row) => [row.values[key], row.values[measure]])),
          hit: false,
        },
        ...points.map((row) => ({
          name: runs[row.run].name,
          run: row.run,
          line: false,
          dots: true,
          radius: 6,
          points: [[row.values[key], row.values[measure]]],
        })),
      ],
      labels: points.map((row) => ({
        x: row.values[key],
        y: row.values[measure],
        text: runs[row.run].name,
        run: row.run,
      })),
      hits: points.map((row) => ({
        x: row.values[key],
        y: row.values[measure],
        run: row.run,
        lines: [
          runs[row.run].name,
          `${title} ${write("number", row.values[measure])}`,
          `${label} ${write(kind, row.values[key])}`,
        ],
      })),
      table: {
        heads: ["run", label, title],
        rows: points.map((row) => [
          runs[row.run].name,
          write(kind, row.values[key]),
          write("number", row.values[measure]),
        ]),
      },
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

const TESTED = {
  accuracy: ["accuracy", "percent"],
  nll: ["NLL", "number"],
  ece: ["ECE", "number"],
  brier: ["Brier score", "number"],
};

function seedTable() {
  const keys = Object.keys(TESTED).filter((key) => report.seeds.some((group) => group.measures[key]));
  const rows = report.seeds.map(({ networks, measures }) => [
    `${runs[networks[0]].method || "?"}, ${networks.length} seeds`,
    ...keys.map((key) =>
      measures[key]
        ? `${write(TESTED[key][1], measures[key].mean)} ± ${write(TESTED[key][1], measures[key].high - measures[key].mean)}`
        : "–",
    ),
  ]);
  const tests = report.anova.map(
    ({ measure, f, p }) => `${TESTED[measure]?.[0] || measure}: F = ${write("short", f)}, p = ${write("short", p)}`,
  );
  return h(
    "div",
    { class: "card" },
    heading("Means over seeds", "With 95 % intervals (Student's t)."),
    plainTable(["method", ...keys.map((key) => TESTED[key][0])], rows),
    tests.length ? h("p", { class: "hint" }, `One-way ANOVA between them: ${tests.join("; ")}.`) : null,
  );
}

/** A table of all pairs: the row's measure minus the column's, marked where a paired test tells them apart. */
function pairTable() {
  const measures = unique(report.pairs.map((pair) => pair.measure)).sort((a, b) => (b === "nll") - (a === "nll"));
  const about =
    "Paired tests on the same images: McNemar's test for accuracy, the paired t test for the others. Each cell is the row minus the column. Differences with p < 0.05 after Holm's correction are coloured: green where the row is better, red where it is worse. They hold for these networks; comparing methods takes several seeds.";
  const build = ({ measure }) => {
    const pairs = report.pairs.filter((pair) => pair.measure === measure);
    const places = unique(pairs.flatMap(({ first, second }) => [first, second])).sort((a, b) => a - b);
    const kind = (TESTED[measure] || ["", "number"])[1];
    const cell = (row, column) => {
      const pair = pairs.find(
        ({ first, second }) => (first === row && second === column) || (first === column && second === row),
      );
      if (row === column || !pair) return h("span", { class: "hint" }, "·");
      const difference = pair.first === row ? pair.difference : -pair.difference;
      const state = pair.better === null ? "hint" : pair.better === row ? "better" : "worse";
      const words = `${runs[row].name} minus ${runs[column].name}: ${write(kind, difference)}, p = ${write("short", pair.p)} (${pair.test})`;
      return h(
        "span",
        { class: state, title: words },
        write(kind, difference),
        pair.better === row ? h("span", { class: "unseen" }, " better") : null,
      );
    };
    return plainTable(
      ["row − column", ...places.map((place) => runs[place].name)],
      places.map((row) => [h("span", {}, swatch(row), runs[row].name), ...places.map((column) => cell(row, column))]),
      "Differences between all pairs",
    );
  };
  return h(
    "div",
    { class: "card" },
    heading("Is the difference real?", about),
    choosing(
      [{ name: "measure", label: "Measure", options: measures.map((key) => [key, (TESTED[key] || [key])[0]]) }],
      build,
    ),
  );
}
