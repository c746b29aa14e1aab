"use strict";
// What the page was given, and the small pieces that every part is built of.

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
      const select = h(
        "select",
        {
          change: () => {
            state[name] = select.value;
            redo();
          },
        },
        options.map(([value, text]) => h("option", { value }, text)),
      );
      return options.length > 1 ? h("label", { class: "choice" }, h("span", {}, label), select) : null;
    });
  redo();
  return h("div", { class: "stack" }, controls.some(Boolean) ? h("div", { class: "controls" }, controls) : null, body);
}
