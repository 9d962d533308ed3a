// What the page is made of, and what keys and buttons do.
function open(name) {
  for (const page of ["decode", "explore"]) {
    byId(`page-${page}`).hidden = page !== name;
    byId(`tab-${page}`).setAttribute("aria-pressed", String(page === name));
  }
  if (name === "explore") { stop(); explorers.forEach((explorer) => explorer()); } else show();
  document.body.dataset.page = name;
}
function theme(name) {
  document.documentElement.dataset.theme = name;
  byId("theme").textContent = name === "dark" ? "Light theme" : "Dark theme";
}
const turn = () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");

for (const [key, text] of Object.entries(trace.facts)) byId("facts").append(make("div", {}, make("dt", {}, key), make("dd", {}, text)));
if (drafters.length > 1) {
  const key = (kind, ...about) => make("li", {}, make("span", { class: `key drafted ${kind}` }), ...about);
  byId("legend-drafted").replaceWith(
    ...drafters.map((name, place) => key(`by-${place % 3}`, `drafted by ${name} and kept`)), key("by-several", "drafted by several and kept"),
  );
  byId("legend-by").textContent = `letters: drafted by ${drafters.map((name, place) => `${String.fromCharCode(65 + place)} ${name}`).join(", ")}`;
}
byId("round").max = rounds.length - 1;
byId("pick-row").hidden = trace.rows === 1;
for (let index = 0; index < trace.rows; index += 1) byId("row").append(make("option", { value: index }, index));
theme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
byId("theme").addEventListener("click", turn);
byId("tab-decode").addEventListener("click", () => open("decode"));
byId("tab-explore").addEventListener("click", () => open("explore"));
byId("first").addEventListener("click", () => go(0));
byId("back").addEventListener("click", () => go(at - 1));
byId("next").addEventListener("click", () => go(at + 1));
byId("last").addEventListener("click", () => go(rounds.length - 1));
byId("play").addEventListener("click", play);
byId("round").addEventListener("input", (event) => go(Number(event.target.value)));
byId("row").addEventListener("change", (event) => choose(Number(event.target.value)));
byId("overview").addEventListener("click", (event) => {
  const box = byId("overview").firstChild.getBoundingClientRect();
  go(Math.floor((event.clientX - box.left) / box.width * rounds.length));
});

// Arrows belong to a control, and to a panel that they can scroll; N and P step from everywhere.
function scrolls(target, key) {
  const panel = target.closest?.("[data-scrolls]");
  if (!panel) return false;
  return key === "arrowup" || key === "arrowdown" || key === "home" || key === "end"
    ? panel.scrollHeight > panel.clientHeight : panel.scrollWidth > panel.clientWidth;
}
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const key = event.key.toLowerCase(), within = (names) => event.target.closest?.(names);
  const keys = { t: turn, d: () => open("decode"), e: () => open("explore") };
  if (!byId("page-decode").hidden) {
    Object.assign(keys, { n: () => go(at + 1), p: () => go(at - 1) });
    if (!within("input, select") && !scrolls(event.target, key)) {
      Object.assign(keys, { arrowleft: keys.p, arrowright: keys.n, home: () => go(0), end: () => go(rounds.length - 1) });
      if (trace.rows > 1) Object.assign(keys, { arrowup: () => choose(row - 1), arrowdown: () => choose(row + 1) });
    }
    if (!within("button, input, select, summary")) keys[" "] = play;
  }
  if (within("select") && key.length === 1) return;
  const act = keys[key];
  if (act) { event.preventDefault(); act(); }
});
let waiting = null;
addEventListener("resize", () => {
  clearTimeout(waiting);
  waiting = setTimeout(() => { if (byId("page-explore").hidden) show(); else explorers.forEach((explorer) => explorer()); }, 100);
});
[
  slider("alpha", "alpha-out", numbers.speed.alpha, 0.8, showSpeed), slider("cost", "cost-out", numbers.speed.c, 0.1, showSpeed),
  slider("head", "first-out", numbers.depth.first, 0.8, showDepth), slider("decay", "decay-out", numbers.depth.decay, 0.9, showDepth),
  slider("spread", "spread-out", numbers.trees.spread, 0.9, showTrees), slider("budget", "budget-out", numbers.trees.budget, 8, showTrees),
  slider("delta", "delta-out", numbers.particles.delta, 0.5, showParticlesAndRejection),
  slider("block", "block-out", numbers.particles.K, 4, showParticlesAndRejection),
  slider("count", "count-out", numbers.particles.N, 8, showParticlesAndRejection),
].forEach((tell) => tell());
function toHash() {
  const wanted = /^#round-(\d+)$/.exec(location.hash);
  if (wanted) at = Math.min(rounds.length - 1, Number(wanted[1]));
  open(location.hash === "#explore" ? "explore" : "decode");
}
addEventListener("hashchange", toHash);
toHash();
