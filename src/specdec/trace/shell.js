
"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const trace = JSON.parse(byId("data-trace").textContent);
  const numbers = JSON.parse(byId("data-explorers").textContent);
  const SVG = "http://www.w3.org/2000/svg";
  const SIGNS = { accepted: "\u2713", bonus: "+", rejected: "\u2715", pruned: "\u00b7", scratch: "~", anchor: "" };
  const FATES = { accepted: "accepted", rejected: "rejected", pruned: "not reached", scratch: "scratch" };

  // Text of a model only ever becomes text nodes.
  function make(name, attributes = {}, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children.map(String));
    return made;
  }
  function draw(name, attributes = {}, text = null) {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== null) made.textContent = text;
    return made;
  }
  const shown = (id) => trace.text[id] ?? `<${id}>`;
  const clipped = (text, most = 14) => ([...text].length > most ? [...text].slice(0, most - 1).join("") + "\u2026" : text);
  const spaced = (text) => text.replaceAll(" ", "\u2423");
  const percent = (value) => `${(100 * value).toFixed(value < 0.1 ? 1 : 0)}%`;
  const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

  // ---- the decode
  let at = 0, row = 0, timer = null;
  const rounds = trace.rounds;
  const ofRow = (round, index) => rounds[round].rows.find((one) => one.row === index);

  // The text of a row up to a round, as it was then: tokens with where they come from.
  function textOf(index, round) {
    const texts = Array.from({ length: trace.rows }, () => []);
    for (let number = 0; number <= round; number += 1) {
      const before = texts.map((one) => one);
      for (const [moved, source] of rounds[number].moves) texts[moved] = before[source];
      for (const one of rounds[number].rows) {
        const fresh = one.tokens.map((token, place) => ({
          token, now: number === round, from: place < one.kept ? "drafted" : "target", by: whoDrafted(one, place),
        }));
        texts[one.row] = [...texts[one.row].map((old) => ({ ...old, now: false })), ...fresh];
      }
    }
    return texts[index];
  }
  function pathOf(one) {
    const path = [];
    one.nodes.forEach((node, place) => { if (node.f === "accepted") path.push(place); });
    return path;
  }
  function whoDrafted(one, place) {
    const node = pathOf(one)[place];
    if (node === undefined) return "";
    const names = one.by.filter(([, nodes]) => nodes.includes(node + 1)).map(([name]) => name);
    return names.length ? names.join(" and ") : trace.facts.drafter;
  }

  function showText(one) {
    const panel = byId("text");
    panel.replaceChildren();
    const put = (token, kind, hint, now) => {
      const text = shown(token);
      const piece = make("span", { class: `token ${kind}${now ? " now" : ""}`, title: hint }, text);
      panel.append(piece);
      if (text.includes("\u23ce")) panel.append(make("br"));
      return piece;
    };
    for (const token of trace.prompt) put(token, "prompt", "prompt", false);
    let newest = null;
    for (const { token, from, by, now } of textOf(row, at)) {
      const piece = put(token, from, from === "drafted" ? `drafted by ${by}` : "the target's own", now);
      if (now) newest = piece;
    }
    if (newest) panel.scrollTop = Math.max(0, newest.offsetTop - panel.offsetTop - panel.clientHeight / 2);
  }

  // Leaves one below the other, parents beside the first of their children; the accepted path first.
  function layout(one) {
    const below = new Map([[-1, []]]);
    one.nodes.forEach((node, place) => { below.set(place, []); below.get(node.p).push(place); });
    const places = new Map();
    let line = 0;
    const visit = (node, depth) => {
      places.set(node, { depth, line });
      const order = { accepted: 0, rejected: 1, pruned: 2, scratch: 3 };
      const children = [...below.get(node)].sort((a, b) => order[one.nodes[a].f] - order[one.nodes[b].f]);
      const path = pathOf(one);
      const leaf = path.length ? path[path.length - 1] : -1;
      if (node === leaf && one.tokens.length > one.kept) {
        places.set("bonus", { depth: depth + 1, line, parent: node });
        if (children.length) line += 1;
      }
      children.forEach((child, place) => { if (place) line += 1; visit(child, depth + 1); });
    };
    visit(-1, 0);
    return { places, lines: line + 1 };
  }

  function showTree(one) {
    const wide = 142, high = 44, box = { width: 118, height: 34 };
    const { places, lines } = layout(one);
    const deepest = Math.max(...[...places.values()].map((place) => place.depth));
    const width = (deepest + 1) * wide, height = lines * high + 8;
    const picture = draw("svg", {
      width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": byId("said").textContent,
    });
    const x = (place) => place.depth * wide + 4, y = (place) => place.line * high + 6;
    const edge = (from, to, kind) => picture.append(draw("path", {
      class: `edge ${kind}`,
      d: `M${x(from) + box.width} ${y(from) + 17} C${x(from) + wide - 8} ${y(from) + 17}, ${x(to) - 24} ${y(to) + 17}, ${x(to)} ${y(to) + 17}`,
    }));
    const node = (place, token, kind, note, hint) => {
      const group = draw("g", { "data-fate": kind });
      group.append(draw("title", {}, hint));
      group.append(draw("rect", { class: `node ${kind}`, x: x(place), y: y(place), rx: 6, ...box }));
      const label = `${SIGNS[kind]}${SIGNS[kind] ? " " : ""}${clipped(spaced(shown(token)), SIGNS[kind] ? 11 : 13)}`;
      group.append(draw("text", { class: kind, x: x(place) + 7, y: y(place) + 15 }, label));
      group.append(draw("text", { class: "small", x: x(place) + 7, y: y(place) + 29 }, note));
      picture.append(group);
    };
    for (const [name, place] of places) {
      if (name === "bonus") edge(places.get(place.parent), place, "bonus");
      else if (name !== -1) edge(places.get(one.nodes[name].p), place, one.nodes[name].f);
    }
    for (const [name, place] of places) {
      if (name === -1) node(place, one.anchor, "anchor", "last token", "the last token of the text");
      else if (name === "bonus") node(place, one.tokens[one.kept], "bonus", "target's own", "the target's own token");
      else {
        const { t, f, c, v, s, k } = one.nodes[name];
        const said = s === undefined ? "" : `; the drafter gave its path ${percent(s)}`;
        node(place, t, f, `p ${percent(c)}  path ${percent(v)}`,
          `${shown(t)}: ${FATES[f]}; ${k} candidate; the target gives it ${percent(c)} and its path ${percent(v)}${said}`);
      }
    }
    byId("tree").replaceChildren(picture);
    byId("values").textContent = one.nodes.length
      ? "p: chance that the target gives the token after its parent, without sampling options; path: of all tokens down to it."
      : "Nothing was drafted in this round: it is plain decoding.";
    byId("legend-scratch").hidden = !one.nodes.some((other) => other.f === "scratch");
    const table = make("table");
    table.append(rowOf("th", ["node", "after", "token", "fate", "kind", "p", "path", "drafter's own value"]));
    one.nodes.forEach((other, place) => table.append(rowOf("td", [
      place, other.p < 0 ? "last token" : other.p, spaced(shown(other.t)), FATES[other.f], other.k,
      percent(other.c), percent(other.v), other.s === undefined ? "" : percent(other.s),
    ])));
    byId("nodes").replaceChildren(table);
  }
  function rowOf(cell, values) {
    const line = make("tr");
    for (const value of values) line.append(value instanceof Node ? value : make(cell, {}, value));
    return line;
  }

  function showParticles() {
    const round = rounds[at];
    byId("particles").hidden = round.weights === undefined;
    if (round.weights === undefined) return;
    const last = at === rounds.length - 1, count = round.weights.length;
    const moved = at + 1 < rounds.length ? rounds[at + 1].moves : [];
    byId("ess").textContent = `Effective sample size ${round.ess.toFixed(2)} of ${count}` + (moved.length
      ? `: resampled; ${moved.map(([to, from]) => `${to} goes on from ${from}`).join(", ")}.` : ".")
      + (last ? ` The text is particle ${trace.chosen}, drawn in proportion to weight; ${plural(trace.survivors, "first particle")} left.` : "");
    const gauge = make("div", { class: "meter" }), fill = make("div");
    fill.style.width = percent(round.ess / count);
    gauge.append(fill);
    byId("gauge").replaceChildren(gauge);
    const table = make("table");
    table.append(rowOf("th", ["particle", "weight", "", "text"]));
    round.weights.forEach((weight, index) => {
      const meter = make("div", { class: "meter" }), part = make("div"), cell = make("td");
      part.style.width = percent(weight);
      meter.append(part);
      cell.append(meter);
      const tail = textOf(index, at).slice(-12).map((one) => shown(one.token)).join("");
      const line = rowOf("td", [index, percent(weight), cell, tail]);
      if (last && index === trace.chosen) line.className = "chosen";
      table.append(line);
    });
    byId("weights").replaceChildren(table);
  }

  function showLookahead(one) {
    byId("lookahead").hidden = one.window === undefined && one.pool === undefined;
    if (byId("lookahead").hidden) return;
    const lines = make("table");
    (one.window ?? []).forEach((line) => lines.append(rowOf("td", line.map((token) => spaced(shown(token))))));
    byId("window").replaceChildren(one.window?.length ? lines : make("p", {}, "No window in this round."));
    const pool = make("table");
    pool.append(rowOf("th", ["after", "came"]));
    (one.pool ?? []).forEach(([key, entry]) => pool.append(rowOf("td", [spaced(shown(key)), spaced(entry.map(shown).join(""))])));
    const more = (one.pooled ?? 0) - (one.pool ?? []).length;
    byId("pool").replaceChildren(pool, make("p", { class: "note" }, more > 0 ? `and ${more} more` : ""));
  }

  function say(one) {
    const { number, ms } = rounds[at], took = `${ms[3].toFixed(1)} ms, ${ms[1].toFixed(1)} of them in the target`;
    if (!one) return `Round ${number}: this particle has ended.`;
    const own = one.tokens.length > one.kept ? ` and one of the target's own, "${shown(one.tokens[one.kept])}"` : "";
    const drafted = one.nodes.filter((node) => node.f !== "scratch").length, scratch = one.nodes.length - drafted;
    const start = number === 0 ? "Round 0 is the pass over the prompt"
      : `Round ${number}: ${plural(drafted, "node")} drafted${scratch ? ` and ${plural(scratch, "scratch node")}` : ""}`;
    const end = one.end ? ` The row ends: ${one.end}.` : "";
    return `${start}; ${plural(one.kept, "drafted token")} kept${own} (${took}).${end}`;
  }

  function show() {
    const one = ofRow(at, row);
    byId("round").value = at;
    byId("number").textContent = `${at} of ${rounds.length - 1}`;
    byId("said").textContent = say(one);
    byId("row").value = row;
    byId("first").disabled = byId("back").disabled = at === 0;
    byId("next").disabled = byId("last").disabled = at === rounds.length - 1;
    const blank = { nodes: [], tokens: [], kept: 0, anchor: textOf(row, at).at(-1)?.token ?? trace.prompt.at(-1), by: [] };
    showText(one);
    showTree(one ?? blank);
    showParticles();
    showLookahead(one ?? blank);
    document.body.dataset.round = at;
    document.body.dataset.row = row;
  }
  function go(to) { at = Math.min(rounds.length - 1, Math.max(0, to)); show(); }
  function stop() { clearInterval(timer); timer = null; byId("play").textContent = "Play"; }
  function play() {
    if (timer) { stop(); return; }
    if (at === rounds.length - 1) go(0);
    byId("play").textContent = "Stop";
    timer = setInterval(() => { if (at < rounds.length - 1) go(at + 1); else stop(); }, 900);
  }

  // ---- the explorers
  function chart(id, lines, axes) {
    const width = 520, height = 260, left = 46, right = 120, top = 14, bottom = 40;
    const xs = lines.flatMap((line) => line.points.map(([x]) => x)), ys = lines.flatMap((line) => line.points.map(([, y]) => y));
    const low = Math.min(...xs), high = Math.max(...xs), most = axes.most ?? Math.max(...ys, 1) * 1.05;
    const x = (value) => left + (value - low) / (high - low || 1) * (width - left - right);
    const y = (value) => height - bottom - Math.min(value, most) / most * (height - top - bottom);
    const picture = draw("svg", { viewBox: `0 0 ${width} ${height}`, width: "100%", role: "img", "aria-label": axes.label });
    const step = most > 12 ? 4 : most > 6 ? 2 : most > 2.5 ? 1 : 0.5;
    for (let tick = 0; tick <= most; tick += step) {
      picture.append(draw("line", { class: "axis", x1: left, x2: width - right, y1: y(tick), y2: y(tick) }));
      picture.append(draw("text", { class: "small", x: left - 8, y: y(tick) + 4, "text-anchor": "end" }, String(tick)));
    }
    const count = Math.min(8, Math.max(1, lines[0].points.length - 1));
    for (let tick = 0; tick <= count; tick += 1) {
      const value = low + (high - low) * tick / count, text = Number.isInteger(value) ? String(value) : value.toFixed(high - low > 8 ? 0 : 2);
      picture.append(draw("text", { class: "small", x: x(value), y: height - bottom + 18, "text-anchor": "middle" }, text));
    }
    picture.append(draw("text", { class: "small", x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle" }, axes.x));
    const ends = lines.map((line) => y(line.points.at(-1)[1]));
    lines.forEach((line, place) => {
      picture.append(draw("polyline", { class: `line ${line.kind}`, points: line.points.map(([a, b]) => `${x(a)},${y(b)}`).join(" ") }));
      if (line.mark !== undefined) {
        const [a, b] = line.points[line.mark];
        picture.append(draw("circle", { class: `dot ${line.kind}`, cx: x(a), cy: y(b), r: 6 }));
      }
      const close = place > 0 && Math.abs(ends[place] - ends[0]) < 14;
      picture.append(draw("text", { class: line.kind, x: width - right + 8, y: ends[place] + (close ? 18 : 4) }, line.name));
    });
    byId(id).replaceChildren(picture);
  }
  function slider(id, out, axis, start, then) {
    const input = byId(id), nearest = axis.reduce((best, value, place) => Math.abs(value - start) < Math.abs(axis[best] - start) ? place : best, 0);
    Object.assign(input, { min: 0, max: axis.length - 1, step: 1, value: nearest });
    const tell = () => { byId(out).textContent = String(axis[input.value]); input.setAttribute("aria-valuetext", axis[input.value]); then(); };
    input.addEventListener("input", tell);
    return tell;
  }
  const value = (id) => Number(byId(id).value);
  const two = (number) => number.toFixed(2);

  function showSpeed() {
    const data = numbers.speed, a = value("alpha"), c = value("cost"), best = data.best[a][c];
    const curve = data.speedup[a][c];
    chart("chart-speed", [{ kind: "first", name: "speed", points: data.gamma.map((gamma, place) => [gamma, curve[place]]), mark: best }],
      { x: "drafted tokens \u03b3", label: "speed over drafted tokens" });
    byId("said-speed").textContent = best === 0 ? "Drafting costs more than it brings: plain decoding is fastest."
      : `Best at ${plural(best, "token")}: ${two(curve[best])} times as fast, ${two(data.tokens[a][best])} tokens a pass.`;
  }
  function showDepth() {
    const data = numbers.depth, first = value("head"), decay = value("decay"), curve = data.tokens[first][decay];
    chart("chart-depth", [{ kind: "first", name: "tokens a pass", points: [[0, 1], ...curve.map((tokens, place) => [place + 1, tokens])], mark: curve.length },
      { kind: "second", name: "all right", points: [[0, 1], ...curve.map((_, place) => [place + 1, place + 2])] }],
    { x: "heads K", most: 7.4, label: "tokens a pass over heads" });
    byId("said-depth").textContent = `Heads are right with ${data.chances[first][decay].map(percent).join(", ")}: ${two(curve.at(-1))} tokens a pass with ${curve.length}.`;
  }
  function showTrees() {
    const data = numbers.trees, spread = value("spread"), last = data.budget.length - 1;
    const line = (values) => data.budget.map((budget, place) => [budget, values[place]]);
    chart("chart-trees", [{ kind: "first", name: "dynamic", points: line(data.dynamic[spread]) },
      { kind: "second", name: "fixed", points: line(data.fixed[spread]) }],
    { x: "nodes", most: 4.1, label: "drafted tokens kept over nodes" });
    byId("said-trees").textContent = `At ${data.budget[last]} nodes ${two(data.dynamic[spread][last])} against ${two(data.fixed[spread][last])}; at 8 nodes ${two(data.dynamic[spread][7])} against ${two(data.fixed[spread][7])}.`;
  }
  function showParticlesAndRejection() {
    const data = numbers.particles, d = value("delta"), k = value("block"), n = value("count");
    chart("chart-smc", [{ kind: "first", name: "particles", points: data.delta.map((delta) => [delta, data.fixed[k]]) },
      { kind: "second", name: "rejection", points: data.delta.map((delta, place) => [delta, data.rejection[place][k]]), mark: d }],
    { x: "divergence \u03b4", most: 5.6, label: "tokens a pass over divergence" });
    byId("said-smc").textContent = `Rejection keeps the law and emits ${two(data.rejection[d][k])} tokens a pass (\u03b1 ${two(data.alpha[d])}); particles emit ${data.fixed[k]}. `
      + `One block drawn from ${plural(data.N[n], "particle")} is at most ${two(data.bound[d][k][n])} from the law (total variation; \u03c7\u00b2 of the block ${two(data.block_chi_square[d][k])}).`;
  }

  // ---- the page
  function open(name) {
    for (const page of ["decode", "explore"]) {
      byId(page).hidden = page !== name;
      byId(`tab-${page}`).setAttribute("aria-pressed", String(page === name));
    }
    if (name !== "decode") stop();
    document.body.dataset.page = name;
  }
  function theme(name) { document.documentElement.dataset.theme = name; }
  const turn = () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");

  byId("facts").textContent = Object.entries(trace.facts).map(([key, text]) => `${key}: ${text}`).join(" \u00b7 ");
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
  byId("row").addEventListener("change", (event) => { row = Number(event.target.value); show(); });
  document.addEventListener("keydown", (event) => {
    const inside = event.target.closest?.("input, select, textarea");
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const decoding = !byId("decode").hidden;
    const keys = {
      t: turn, d: () => open("decode"), e: () => open("explore"),
      ...(decoding && !inside ? {
        arrowleft: () => go(at - 1), arrowright: () => go(at + 1), home: () => go(0), end: () => go(rounds.length - 1),
        ...(trace.rows > 1 ? {
          arrowup: () => { row = (row + trace.rows - 1) % trace.rows; show(); },
          arrowdown: () => { row = (row + 1) % trace.rows; show(); },
        } : {}),
      } : {}),
      ...(decoding && !event.target.closest?.("button, input, select, summary") ? { " ": play } : {}),
    };
    const act = keys[event.key.toLowerCase()];
    if (act) { event.preventDefault(); act(); }
  });
  [
    slider("alpha", "alpha-out", numbers.speed.alpha, 0.8, showSpeed), slider("cost", "cost-out", numbers.speed.c, 0.1, showSpeed),
    slider("head", "first-out", numbers.depth.first, 0.8, showDepth), slider("decay", "decay-out", numbers.depth.decay, 0.9, showDepth),
    slider("spread", "spread-out", numbers.trees.spread, 0.6, showTrees),
    slider("delta", "delta-out", numbers.particles.delta, 0.5, showParticlesAndRejection),
    slider("block", "block-out", numbers.particles.K, 4, showParticlesAndRejection),
    slider("count", "count-out", numbers.particles.N, 8, showParticlesAndRejection),
  ].forEach((tell) => tell());
  const wanted = /^#round-(\d+)$/.exec(location.hash);
  open(location.hash === "#explore" ? "explore" : "decode");
  go(wanted ? Number(wanted[1]) : 0);
})();
