"use strict";
// Data that a network has never seen, and data that change.

// -- other data -----------------------------------------------------------------------------------------------------

function ood() {
  const sets = unique(runs.flatMap((run) => entries(run.evaluation.ood).map(([name]) => name)));
  const kinds = [
    ["auroc", "AUROC (higher is better)"],
    ["aupr_in", "AUPR, in-distribution positive"],
    ["aupr_out", "AUPR, out-of-distribution positive"],
    ["fpr95", "FPR at 95 % (lower is better)"],
    ["fpr85", "FPR at 85 % (lower is better)"],
  ];
  return [
    heading("Out-of-distribution data", "A good uncertainty is higher on them than on the test data."),
    choosing([{ name: "kind", label: "Measure", options: kinds }], ({ kind }) =>
      sets.map((name) => oodSet(name, kind)),
    ),
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
    h(
      "div",
      { class: "card" },
      h("h3", {}, name, h("span", { class: "hint" }, ` ${measuredOn(known, name)}`)),
      plainTable(["run", ...scores.map((score) => `by ${score}`)], rows, `Detection of ${name}`),
    ),
    drawn.length ? smalls(...drawn.map(([run, index]) => histogram(run, index, name))) : null,
  ];
}

/** The numbers of images behind the scores; runs may have been measured on different ones. */
function measuredOn(known, name) {
  const pairs = known
    .map(([run]) => [run.evaluation.ood[name].images, run.evaluation.examples])
    .filter((pair) => pair.every(isNumber))
    .map(([outside, inside]) => `${write("count", outside)} images against ${write("count", inside)} test images`);
  return unique(pairs).join("; ");
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
  const own = run.data || "test data";
  const two = [
    [own, inside, runColour(index)],
    [name, outside, "var(--ink)"],
  ];
  const tops = two.flatMap(([, counts]) => steps(counts).map((point) => point[1]));
  return chart({
    title: run.name,
    run: index,
    small: true,
    height: 220,
    key: two.map(([title, , colour]) => [title, colour]),
    x: { label: String(score), domain: [edges[0], edges.at(-1)] },
    y: {
      domain: [0, 1.05 * Math.max(...tops)],
      ticks: [0, 0.01, 0.05, 0.2, 0.5, 1].map(Math.sqrt).filter((v) => v <= 1.05 * Math.max(...tops)),
      write: (v) => write("share", v * v),
    },
    series: two.map(([title, counts, colour]) => ({ name: title, colour, area: true, points: stairs(steps(counts)) })),
    nearest: "x",
    hits: inside.map((_, i) => ({
      x: (edges[i] + edges[i + 1]) / 2,
      y: Math.max(steps(inside)[i + 1][1], steps(outside)[i + 1][1]),
      run: index,
      lines: [
        `${score} ${write("short", edges[i])} to ${write("short", edges[i + 1])}`,
        `${own}: ${write("percent", inside[i])}`,
        `${name}: ${write("percent", outside[i])}`,
      ],
    })),
    table: {
      heads: [String(score), own, name],
      rows: inside.map((_, i) => [
        `${write("short", edges[i])} – ${write("short", edges[i + 1])}`,
        write("percent", inside[i]),
        write("percent", outside[i]),
      ]),
    },
  });
}

// -- shift ----------------------------------------------------------------------------------------------------------

const SHIFT_MEASURES = [
  ["accuracy", "accuracy"],
  ["nll", "NLL"],
  ["ece", "ECE"],
  ["tempered_nll", "NLL with the clean data's temperature"],
  ["tempered_ece", "ECE with the clean data's temperature"],
  ["brier", "Brier score"],
  ["entropy", "entropy"],
  ["epistemic", "epistemic uncertainty"],
  ["apart", "entropy of correct and wrong predictions"],
];

function shift() {
  const names = unique(runs.flatMap((run) => entries(run.evaluation.shift?.corruptions).map(([name]) => name)));
  const rows = runs.flatMap((run) => [
    ...entries(run.evaluation.shift?.corruptions).flatMap(([, r]) => list(r)),
    ...list(run.evaluation.shift?.rotation),
    ...list(run.evaluation.shift?.noise),
  ]);
  const known = SHIFT_MEASURES.filter(([key]) =>
    rows.some((row) => isNumber(row[key === "apart" ? "entropy_right" : key])),
  );
  const means = runs.some(
    (run) =>
      list(run.evaluation.shift?.corruptions_mean?.["by severity"]).length ||
      entries(run.evaluation.shift?.corruptions).length,
  );
  const counts = unique(rows.map((row) => row.images).filter(isNumber));
  const on = counts.length ? ` Each point is measured on ${counts.map((n) => write("count", n)).join(" or ")} images.` : "";
  return [
    heading(
      "Distribution shift",
      `Corrupted, rotated or noisy images. A reliable network becomes less certain as its accuracy falls.${on}`,
    ),
    choosing([{ name: "measure", label: "Measure", options: known }], ({ measure }) => {
      const parts = [
        means ? shiftChart("Mean over corruptions", measure, (s) => severities(meanBySeverity(s)), "severity") : null,
        shiftChart("Rotation", measure, (s) => list(s.rotation).map((row) => [row.degrees, row]), "degrees"),
        shiftChart("Gaussian noise", measure, (s) => list(s.noise).map((row) => [row.db, row]), "signal to noise, dB"),
      ];
      const each = names.map((name) =>
        shiftChart(name.replaceAll("_", " "), measure, (s) => severities(s.corruptions?.[name]), null, true),
      );
      return [
        grid(...parts),
        corruptionMeans(),
        names.length
          ? h("div", { class: "stack" }, heading("Each corruption", "By severity; 0 is the original images."), smalls(...each))
          : null,
      ];
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
  const keys = apart
    ? [
        ["entropy_right", "right", ""],
        ["entropy_wrong", "wrong", "6 4"],
      ]
    : [[measure, "", null]];
  const severity = label === "severity" || label === null;
  const series = evaluated((e) => isObject(e.shift))
    .flatMap(([run, index]) =>
      keys.map(([key, which, dash]) => {
        const points = rowsOf(run.evaluation.shift)
          .map(([x, row]) => [x, row[key]])
          .filter((point) => point.every(isNumber))
          .sort((a, b) => a[0] - b[0]);
        // The unchanged images are severity 0: where the curve starts.
        const clean = run.evaluation.measures?.[key];
        if (severity && isNumber(clean) && points.length && points[0][0] > 0) points.unshift([0, clean]);
        return {
          name: which ? `${run.name}, ${which} predictions` : run.name,
          what: SHIFT_MEASURES.find(([k]) => k === measure)[1].split(":")[0],
          run: index,
          dash: dash ?? undefined,
          dots: !small,
          points,
        };
      }),
    )
    .filter((one) => one.points.length);
  if (!series.length) return null;
  const points = series.flatMap((one) => one.points);
  const kind = measure === "accuracy" ? "percent" : "number";
  return chart({
    title,
    small,
    height: small ? 150 : undefined,
    key:
      apart && !small
        ? [
            ["correct predictions", "var(--ink)"],
            ["wrong predictions", "var(--ink)", "6 4"],
          ]
        : null,
    x: {
      label,
      domain: domainOf(
        points.map((p) => p[0]),
        { air: 0.02 },
      ),
      ticks: severity
        ? unique(points.map((p) => p[0])).sort((a, b) => a - b)
        : label === "degrees"
          ? [-180, -135, -90, -45, 0, 45, 90, 135, 180, 270, 360].filter(
              (v) => points.some((p) => p[0] <= v) && points.some((p) => p[0] >= v),
            )
          : undefined,
    },
    y: {
      label: small ? null : SHIFT_MEASURES.find(([key]) => key === measure)[1].split(":")[0],
      domain: domainOf(points.map((p) => p[1])),
      kind,
      tickKind: measure === "accuracy" ? "share" : "short",
    },
    series,
  });
}

function corruptionMeans() {
  const known = evaluated((e) => entries(e.shift?.corruptions_mean).some(([, v]) => isObject(v)));
  if (!known.length) return null;
  const kinds = unique(
    known.flatMap(([run]) =>
      entries(run.evaluation.shift.corruptions_mean)
        .filter(([, v]) => isObject(v))
        .map(([k]) => k),
    ),
  );
  const measures = [
    ["accuracy", "accuracy", "percent"],
    ["nll", "NLL", "number"],
    ["ece", "ECE", "number"],
    ["brier", "Brier", "number"],
  ];
  const rows = known.map(([run, index]) => [
    h("span", {}, swatch(index), run.name),
    ...kinds.flatMap((kind) =>
      measures.map(([key, , how]) => write(how, run.evaluation.shift.corruptions_mean[kind]?.[key])),
    ),
  ]);
  return h(
    "div",
    { class: "card" },
    h("h3", {}, "Means over all severities"),
    plainTable(["run", ...kinds.flatMap((kind) => measures.map(([, title]) => `${title}, mean ${kind}`))], rows),
  );
}
