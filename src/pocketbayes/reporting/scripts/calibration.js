"use strict";
// Is a network as right as it is sure?

function calibration() {
  const parts = [];
  const reliable = evaluated((e) => isObject(e.reliability));
  if (reliable.length)
    parts.push(
      heading(
        "Reliability",
        "Accuracy against confidence. On the diagonal the network is calibrated; the shaded part is the gap.",
      ),
      smalls(...reliable.map(reliability)),
    );
  const curves = evaluated((e) => isObject(e.risk_coverage));
  if (curves.length)
    parts.push(
      heading("Selective prediction", "The error rate among the predictions kept, when the least certain ones are rejected."),
      grid(riskCoverage(curves), temperatures(), humans()),
    );
  else if (temperatures() || humans()) parts.push(grid(temperatures(), humans()));
  const boxed = evaluated((e) => entries(e.box).length);
  if (boxed.length)
    parts.push(
      heading("Confidence by class", "Quantiles of the confidence: 5, 25, 50, 75 and 95 %."),
      smalls(...boxed.map(boxes)),
    );
  return parts;
}

function reliability([run, index]) {
  const { confidence, accuracy, count } = run.evaluation.reliability;
  const n = list(count).length;
  const total = count.reduce((sum, c) => sum + (c || 0), 0) || 1;
  const bins = count
    .map((c, i) => ({ i, c, p: confidence[i], a: accuracy[i] }))
    .filter(({ c, p, a }) => c > 0 && isNumber(p) && isNumber(a));
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
      ...bins.map(({ i, a }) => ({
        x0: i / n,
        x1: (i + 1) / n,
        y0: 0,
        y1: a,
        inset: 1,
        round: 2,
        fill: runColour(index),
      })),
      ...bins.map(({ i, a, p }) => ({ class: "gap", x0: i / n, x1: (i + 1) / n, y0: a, y1: p, inset: 1 })),
      ...bins.map(({ i, c }) => ({
        class: "counts",
        x0: i / n,
        x1: (i + 1) / n,
        y0: -0.15,
        y1: -0.15 + 0.12 * Math.sqrt(c / total),
        inset: 1,
      })),
    ],
    marks: [{ from: [0, 0], to: [1, 1] }],
    nearest: "x",
    hits: bins.map(({ i, c, p, a }) => ({
      x: (i + 0.5) / n,
      y: a,
      run: index,
      lines: [
        `${run.name}: ${write("count", c)} images`,
        `confidence ${write("percent", p)}`,
        `accuracy ${write("percent", a)}`,
      ],
    })),
    table: {
      heads: ["confidence", "accuracy", "images"],
      rows: bins.map(({ c, p, a }) => [write("percent", p), write("percent", a), write("count", c)]),
    },
  });
}

function riskCoverage(curves) {
  const series = curves.map(([run, index]) => ({
    name: run.name,
    run: index,
    points: list(run.evaluation.risk_coverage.coverage).map((c, i) => [c, run.evaluation.risk_coverage.risk[i]]),
  }));
  const risks = series.flatMap((one) => one.points.map((point) => point[1]));
  return chart({
    title: "Risk and coverage",
    about: "lower is better",
    x: { label: "answered", domain: [0, 1], kind: "share", tickKind: "share" },
    y: { label: "error rate", domain: domainOf(risks, { low: 0 }), kind: "percent", tickKind: "share" },
    series,
    nearest: "both",
    tableTitle: "Areas under the curves",
    table: {
      heads: ["run", "area"],
      rows: curves.map(([run]) => [run.name, write("number", run.evaluation.risk_coverage.area)]),
    },
  });
}

function temperatures() {
  const known = evaluated((e) => isObject(e.temperature));
  if (!known.length) return null;
  const rows = known.map(([run, index]) => {
    const { value, nll, ece, nll_before, ece_before, images } = run.evaluation.temperature;
    return [
      h("span", {}, swatch(index), run.name),
      write("short", value),
      write("number", nll_before),
      write("number", nll),
      write("number", ece_before),
      write("number", ece),
      write("count", images),
    ];
  });
  return h(
    "div",
    { class: "card" },
    h("h3", {}, "Temperature scaling"),
    h(
      "p",
      { class: "hint" },
      "A baseline: one temperature T, fitted on every other test image and measured on the remaining ones. T above 1 means that the network is overconfident. With a few hundred images T is uncertain and may do harm.",
    ),
    plainTable(["run", "T", "NLL", "NLL with T", "ECE", "ECE with T", "images"], rows),
  );
}

function humans() {
  const known = evaluated((e) => isObject(e.humans));
  const keys = unique(
    known.flatMap(([run]) =>
      entries(run.evaluation.humans)
        .filter(([, v]) => isNumber(v))
        .map(([key]) => key),
    ),
  );
  if (!keys.length) return null;
  const rows = known.map(([run, index]) => [
    h("span", {}, swatch(index), run.name),
    ...keys.map((key) => write("number", run.evaluation.humans[key])),
  ]);
  return h(
    "div",
    { class: "card" },
    h("h3", {}, "Human labels"),
    h(
      "p",
      { class: "hint" },
      "How the predicted probabilities agree with the labels of several annotators.",
    ),
    plainTable(["run", ...keys.map((key) => key.replaceAll("_", " "))], rows),
  );
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
    marks: rows.flatMap(([, q], i) => [
      { from: [q[0], mid(i)], to: [q[4], mid(i)], class: "whisker", colour: runColour(index) },
    ]),
    bars: rows.map(([, q], i) => ({
      x0: q[1],
      x1: q[3],
      y0: i + 0.22,
      y1: i + 0.78,
      round: 3,
      fill: runColour(index),
      class: "quartiles",
    })),
    series: [
      {
        name: run.name,
        run: index,
        line: false,
        dots: true,
        radius: 3.2,
        points: rows.map(([, q], i) => [q[2], mid(i)]),
      },
    ],
    nearest: "y",
    hits: rows.map(([name, q], i) => ({
      x: q[2],
      y: mid(i),
      run: index,
      lines: [
        name,
        `median ${write("percent", q[2])}`,
        `half within ${write("percent", q[1])} to ${write("percent", q[3])}`,
        ...(isNumber(q[5]) ? [`${write("count", q[5])} images`] : []),
      ],
    })),
    table: {
      heads: ["class", "5 %", "25 %", "median", "75 %", "95 %"],
      rows: rows.map(([name, q]) => [name, ...q.slice(0, 5).map((v) => write("percent", v))]),
    },
  });
}
