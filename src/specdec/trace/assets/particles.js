// Particles of `smc`, and window and pool of `lookahead`.
function showParticles(texts) {
  const round = rounds[at];
  byId("particles").hidden = round.weights === undefined;
  if (round.weights === undefined) return;
  const last = at === rounds.length - 1, count = round.weights.length, limit = trace.threshold;
  const moved = rounds[at + 1]?.moves ?? [];
  const below = limit ? `; below ${two(limit * count)} all are resampled` : "";
  const went = trace.resampled[at]
    ? ` Resampled after this round: ${moved.length ? moved.map(([to, from]) => `${to} goes on from ${from}`).join(", ") : "each goes on from itself"}.` : "";
  const end = last ? ` The text is particle ${trace.chosen}, drawn in proportion to weight; ${trace.survivors} of the first particles ${trace.survivors === 1 ? "has" : "have"} descendants.` : "";
  byId("ess").textContent = `Effective sample size ${two(round.ess)} of ${count}${below}.${went}${end}`;
  byId("gauge").replaceChildren(meter(round.ess / count, limit));
  byId("lineage").replaceChildren(lineage());
  byId("lineage").scrollLeft = 30 * at - byId("lineage").clientWidth / 2;
  const table = make("table");
  table.append(headOf(["particle", "weight", "", "text"]));
  round.weights.forEach((weight, index) => {
    const tail = texts[index].slice(-14), cell = make("td");
    textInto(cell, tail.map((one) => ({ ...one, kind: `${one.by ? "drafted by-0" : "target"}${one.round === at ? " now" : ""}`, hint: one.by ? "drafted" : "the target's own" })));
    if (texts[index].length > tail.length) cell.prepend("\u2026");
    const pick = make("button", { type: "button", "aria-pressed": index === row }, index), line = rowOf("td", [make("td", {}, pick), percent(weight), make("td", {}, meter(weight)), cell]);
    pick.addEventListener("click", () => { choose(index); byId("weights").querySelectorAll("button")[index].focus(); });
    if (last && index === trace.chosen) line.className = "chosen";
    table.append(line);
  });
  byId("weights").replaceChildren(table);
}
function meter(share, mark) {
  const fill = make("div"), made = make("div", { class: "meter" }, fill);
  fill.style.width = `${100 * share}%`;
  if (mark) {
    const line = make("i");
    line.style.left = `${100 * mark}%`;
    made.append(line);
  }
  return made;
}

// Who went on from whom: a column a round, a line a particle; the area of a dot is its weight.
function lineage() {
  const count = trace.rows, wide = 30, high = 26, left = 26, top = 8, bottom = 22;
  const width = left + rounds.length * wide, height = top + count * high + bottom;
  const picture = draw("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Who went on from whom, round by round" });
  const x = (number) => left + (number + 0.5) * wide, y = (index) => top + (index + 0.5) * high;
  const source = (number, index) => new Map(rounds[number].moves).get(index) ?? index;
  const line = new Set();
  for (let number = rounds.length - 1, index = trace.chosen; number >= 0; number -= 1) {
    line.add(`${number}/${index}`);
    index = source(number, index);
  }
  picture.append(draw("rect", { class: "here", x: x(at) - wide / 2, y: 0, width: wide, height }));
  rounds.forEach((round, number) => {
    if (trace.resampled[number]) picture.append(draw("line", { class: "resampled", x1: x(number) + wide / 2, x2: x(number) + wide / 2, y1: 0, y2: height - bottom }));
    picture.append(draw("text", { class: "small", x: x(number), y: height - 6, "text-anchor": "middle" }, number));
    round.weights.forEach((weight, index) => {
      const kind = line.has(`${number}/${index}`) ? " chosen" : "";
      if (number) picture.append(draw("path", { class: `edge${kind}`, d: `M${x(number - 1)} ${y(source(number, index))} L${x(number)} ${y(index)}` }));
    });
  });
  rounds.forEach((round, number) => round.weights.forEach((weight, index) => {
    const dot = draw("circle", { class: `particle${line.has(`${number}/${index}`) ? " chosen" : ""}`, cx: x(number), cy: y(index), r: 1.5 + 10 * Math.sqrt(weight) });
    dot.append(draw("title", {}, `round ${number}, particle ${index}: weight ${percent(weight)}`));
    picture.append(dot);
  }));
  for (let index = 0; index < count; index += 1) picture.append(draw("text", { class: "small", x: 4, y: y(index) + 4 }, index));
  return picture;
}

function showLookahead(one) {
  const has = trace.rounds.some((round) => round.rows.some((other) => other.window || other.pool));
  byId("lookahead").hidden = !has;
  if (!has) return;
  const lines = make("table"), columns = one.window?.[0]?.length ?? 0;
  if (columns) lines.append(headOf(["step", ...Array.from({ length: columns }, (_, place) => `+${place}`)]));
  (one.window ?? []).forEach((line, step) => lines.append(rowOf("td", [step + 1, ...line.map((token) => spaced(shown(token)))])));
  byId("window").replaceChildren(columns ? lines : make("p", {}, "No window in this round."));
  const pool = make("table");
  pool.append(headOf(["after", "came", "in this draft"]));
  const first = new Set(one.nodes.filter((node) => node.f !== "scratch" && node.p < 0).map((node) => node.t));
  const entries = [...(one.pool ?? [])].sort((a, b) => (b[0] === one.anchor) - (a[0] === one.anchor));
  for (const [key, entry] of entries) {
    const tried = key === one.anchor && first.has(entry[0]), line = rowOf("td", [spaced(shown(key)), spaced(entry.map(shown).join("")), tried ? "yes" : ""]);
    if (tried) line.className = "chosen";
    pool.append(line);
  }
  const more = (one.pooled ?? 0) - entries.length;
  byId("pool").replaceChildren(entries.length ? pool : make("p", {}, "The pool is empty."), make("p", { class: "note" }, more > 0 ? `and ${more} more` : ""));
}
