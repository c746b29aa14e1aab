"use strict";
// Images and recipes, and the list of all parts. Each says whether it has anything to show, and builds it from the runs
// that are switched on.

function images() {
  const known = evaluated((e) => entries(e.images).some(([, items]) => list(items).length));
  const options = known.map(([run, index]) => [String(index), run.name]);
  return [
    heading("Most and least certain images", "Test images, sorted by the entropy of the prediction."),
    choosing([{ name: "run", label: "Network", options }], ({ run }) =>
      run === undefined
        ? null
        : entries(runs[Number(run)].evaluation.images).flatMap(([title, items]) => [
            h("h3", {}, title),
            h(
              "ul",
              { class: "gallery" },
              list(items).map((item) => imageCard(item, runs[Number(run)])),
            ),
          ]),
    ),
  ];
}

function imageCard(item, run) {
  const names = list(run.weights.class_names);
  const nameOf = (label) => names[label] ?? String(label);
  const right = item.label === item.predicted;
  const picture = h("img", {
    src: `data:image/png;base64,${item.png}`,
    alt: `test image ${item.index}, a ${nameOf(item.label)}`,
    loading: "lazy",
  });
  return h(
    "li",
    { class: `card ${right ? "right" : "wrong"}` },
    picture,
    h(
      "b",
      {},
      nameOf(item.predicted),
      h("span", { class: "verdict" }, right ? " ✓" : " ✗"),
      h("span", { class: "unseen" }, right ? " (right)" : " (wrong)"),
    ),
    right ? h("span", { class: "hint" }, "correct") : h("span", { class: "hint" }, "labelled ", nameOf(item.label)),
    meter(item.confidence),
    h("small", {}, `${write("share", item.confidence)} · ${write("short", item.entropy)} nats`),
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
      [
        "prediction",
        run.cost.samples ? `up to ${run.cost.samples} passes, ${e.propagation || "default"} propagation` : null,
      ],
    ].filter(([, value]) => value);
    return h(
      "section",
      { class: "card", "data-run": index },
      h("h3", {}, swatch(index), run.name, run.method ? h("small", {}, run.method) : null),
      h(
        "dl",
        {},
        facts.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
      ),
      run.recipe ? h("pre", { tabindex: 0 }, run.recipe) : h("p", { class: "hint" }, "no recipe"),
    );
  });
  const versions = h(
    "section",
    { class: "card" },
    h("h3", {}, "Made with"),
    h(
      "dl",
      {},
      entries(report.versions).flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
    ),
  );
  return [
    heading("Recipes and versions", "Everything needed to train these networks again: pocketbayes train RECIPE."),
    h("div", { class: "grid wide" }, cards, versions),
  ];
}

const some = (test) => runs.some((run) => test(run.evaluation, run));
const SECTIONS = [
  { id: "overview", title: "Overview", has: () => true, build: overview },
  {
    id: "calibration",
    title: "Calibration",
    has: () =>
      some(
        (e) => isObject(e.reliability) || isObject(e.risk_coverage) || isObject(e.temperature) || entries(e.box).length,
      ),
    build: calibration,
  },
  { id: "ood", title: "Out of distribution", has: () => some((e) => entries(e.ood).length), build: ood },
  { id: "shift", title: "Shift", has: () => some((e) => entries(e.shift).length), build: shift },
  {
    id: "images",
    title: "Images",
    has: () => some((e) => entries(e.images).some(([, items]) => list(items).length)),
    build: images,
  },
  { id: "training", title: "Training", has: () => some((_, run) => run.epochs.length), build: training },
  { id: "weights", title: "Weights", has: () => some((_, run) => list(run.weights.layers).length), build: weights },
  { id: "plane", title: "Plane", has: () => some((_, run) => run.weights.plane), build: plane },
  { id: "recipes", title: "Recipes", has: () => true, build: recipes },
];
