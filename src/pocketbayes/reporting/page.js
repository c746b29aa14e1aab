"use strict";
// The frame: tabs, the legend that switches runs on and off, light and dark, paper.

const main = document.getElementById("main");
const present = SECTIONS.filter((section) => section.has());

for (const section of present) {
  section.tab = h(
    "button",
    { type: "button", role: "tab", id: `tab-${section.id}`, "aria-controls": section.id, click: () => visit(section) },
    section.title,
  );
  section.panel = h("section", {
    id: section.id,
    role: "tabpanel",
    "aria-labelledby": `tab-${section.id}`,
    class: "stack",
  });
  document.getElementById("tabs").append(section.tab);
  main.append(section.panel);
}

/** Builds a section. If its data are unusable it shows why; the other sections still work. */
function build(section) {
  if (section.built) return;
  section.built = true;
  try {
    section.panel.replaceChildren(...section.build().flat(Infinity).filter(Boolean));
  } catch (error) {
    section.panel.replaceChildren(
      h("p", { class: "card" }, `This section could not be drawn from the data: ${error.message}`),
    );
  }
}

function open(section) {
  for (const one of present) {
    const chosen = one === section;
    one.tab.setAttribute("aria-selected", chosen);
    one.tab.tabIndex = chosen ? 0 : -1;
    one.panel.classList.toggle("off", !chosen);
  }
  build(section);
  section.tab.scrollIntoView({ block: "nearest", inline: "center" });
}

/** Opens a section at its start and puts it into the address, so that it can be linked to. */
function visit(section, focus) {
  open(section);
  if (focus) section.tab.focus();
  history.replaceState(null, "", `#${section.id}`);
  if (main.getBoundingClientRect().top < 0) section.panel.scrollIntoView();
}

document.getElementById("tabs").addEventListener("keydown", (event) => {
  const at = present.findIndex((section) => section.tab === document.activeElement);
  const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: present.length - 1 }[event.key];
  if (at < 0 || to === undefined) return;
  event.preventDefault();
  visit(present[(to + present.length) % present.length], true);
});

function rebuild() {
  for (const section of present) {
    section.built = false;
    if (!section.panel.classList.contains("off")) build(section);
  }
}

// -- the legend -----------------------------------------------------------------------------------------------------

const legend = document.getElementById("legend");
if (runs.length > 1) {
  legend.append(
    ...runs.map((run, index) => {
      const chip = h(
        "button",
        { type: "button", class: "chip", "aria-pressed": "true", title: run.about || run.path },
        swatch(index),
        run.name,
      );
      chip.addEventListener("click", () => {
        if (hidden.has(index)) hidden.delete(index);
        else hidden.add(index);
        chip.setAttribute("aria-pressed", !hidden.has(index));
        rebuild();
      });
      const dim = (on) =>
        document
          .querySelectorAll("main .series[data-run], main .mark[data-run]")
          .forEach((node) => node.classList.toggle("dim", on && Number(node.dataset.run) !== index));
      chip.addEventListener("pointerenter", () => dim(true));
      chip.addEventListener("pointerleave", () => dim(false));
      return chip;
    }),
  );
}

// -- light and dark -------------------------------------------------------------------------------------------------

const THEMES = ["system", "light", "dark"];
const themeButton = document.getElementById("theme");
function remembered(value) {
  try {
    // Pages opened from a file may have no storage: the choice then lasts as long as the page.
    if (value === undefined) return localStorage.getItem("pocketbayes-theme");
    localStorage.setItem("pocketbayes-theme", value);
  } catch {
    return null;
  }
}
function setTheme(name) {
  const theme = THEMES.includes(name) ? name : "system";
  document.documentElement.dataset.theme = theme;
  themeButton.textContent = `Theme: ${theme}`;
}
setTheme(remembered());
themeButton.addEventListener("click", () => {
  const next = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length];
  setTheme(next);
  remembered(next);
});

// -- paper, and the start -------------------------------------------------------------------------------------------

addEventListener("beforeprint", () => present.forEach(build));
addEventListener("scroll", () => tip.hide(), { passive: true });
addEventListener("hashchange", () => {
  const wanted = present.find(({ id }) => `#${id}` === location.hash);
  if (!wanted) return;
  open(wanted);
  wanted.panel.scrollIntoView(); // the browser scrolled before the panel was drawn
});

const measured = unique(report.leaderboard.rows.map((row) => row.data).filter(Boolean));
document.getElementById("subtitle").textContent = [
  runs.length === 1 ? runs[0].name : `${runs.length} networks`,
  ...measured.slice(0, 3),
].join(" · ");
document
  .getElementById("foot")
  .append(
    `pocketbayes ${report.versions.pocketbayes} · torch ${report.versions.torch} · Python ${report.versions.python} · ${report.versions.made}`,
  );
open(present.find(({ id }) => `#${id}` === location.hash) || present[0]);
