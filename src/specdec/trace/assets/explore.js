// The explorers. Every value was computed by specdec.analysis; nothing but look-up happens here.
const value = (id) => Number(byId(id).value);

// About five round numbers from low to high.
function ticks(low, high, whole) {
  const rough = (high - low) / 5 || 1, power = 10 ** Math.floor(Math.log10(rough));
  let step = [1, 2, 2.5, 5, 10].map((one) => one * power).find((one) => one >= rough - 1e-9);
  if (whole) step = Math.max(1, Math.ceil(step));
  const found = [];
  for (let tick = Math.ceil(low / step - 1e-9) * step; tick <= high + step * 1e-6; tick += step) found.push(Number(tick.toFixed(6)));
  return found;
}

// lines: name, points, and the place of a point to mark. Names stand below the picture, where nothing can overlap.
function chart(id, lines, axes) {
  const place = byId(id), width = Math.max(260, Math.round(place.clientWidth || 480)), height = 230;
  const left = 44, right = 14, top = 24, bottom = 42;
  const xs = lines.flatMap((line) => line.points.map(([x]) => x)), ys = lines.flatMap((line) => line.points.map(([, y]) => y));
  const low = Math.min(...xs), high = Math.max(...xs), most = axes.most ?? Math.max(...ys, 1) * 1.08;
  const x = (one) => left + (one - low) / (high - low || 1) * (width - left - right);
  const y = (one) => height - bottom - Math.min(one, most) / most * (height - top - bottom);
  const picture = draw("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `${axes.label}: ${byId(axes.said).textContent}` });
  for (const tick of ticks(0, most, false)) {
    picture.append(draw("line", { class: "axis", x1: left, x2: width - right, y1: y(tick), y2: y(tick) }));
    picture.append(draw("text", { class: "small", x: left - 8, y: y(tick) + 4, "text-anchor": "end" }, tick));
  }
  for (const tick of ticks(low, high, axes.whole)) {
    picture.append(draw("text", { class: "small", x: x(tick), y: height - bottom + 18, "text-anchor": "middle" }, tick));
  }
  picture.append(draw("text", { class: "small", x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, axes.x));
  picture.append(draw("text", { class: "small", x: 4, y: 12 }, axes.y));
  for (const line of lines) {
    picture.append(draw("polyline", { class: `line ${line.kind}`, points: line.points.map(([a, b]) => `${x(a)},${y(b)}`).join(" ") }));
    if (line.mark === undefined) continue;
    const [a, b] = line.points[line.mark];
    picture.append(draw("circle", { class: `dot ${line.kind}`, cx: x(a), cy: y(b), r: 6 }));
  }
  const legend = make("ul", { class: "legend" });
  for (const line of lines) legend.append(make("li", {}, make("span", { class: `swatch ${line.kind}` }), line.name));
  place.replaceChildren(picture, legend);
}
function slider(id, out, axis, start, then) {
  const input = byId(id), nearest = axis.reduce((best, one, place) => Math.abs(one - start) < Math.abs(axis[best] - start) ? place : best, 0);
  Object.assign(input, { min: 0, max: axis.length - 1, step: 1, value: nearest });
  const tell = () => { byId(out).textContent = String(axis[input.value]); input.setAttribute("aria-valuetext", axis[input.value]); then(); };
  input.addEventListener("input", tell);
  return tell;
}
const along = (axis, values) => axis.map((one, place) => [one, values[place]]);

function showSpeed() {
  const data = numbers.speed, a = value("alpha"), c = value("cost"), best = data.best[a][c], curve = data.speedup[a][c];
  byId("said-speed").textContent = best === 0 ? "Drafting costs more than it brings: plain decoding is fastest."
    : `Best at ${plural(best, "token")}: ${two(curve[best])} times as fast, ${two(data.tokens[a][best])} tokens a pass.`;
  chart("chart-speed", [
    { kind: "first", name: `at cost c = ${data.c[c]}; the dot is the best \u03b3`, points: along(data.gamma, curve), mark: best },
    ...(c ? [{ kind: "second", name: "if drafting cost nothing", points: along(data.gamma, data.speedup[a][0]) }] : []),
    { kind: "third", name: "plain decoding", points: data.gamma.map((gamma) => [gamma, 1]) },
  ], { x: "drafted tokens \u03b3", y: "speed, in plain decodings", whole: true, label: "Speed over drafted tokens", said: "said-speed" });
}
function showDepth() {
  const data = numbers.depth, first = value("head"), decay = value("decay"), curve = data.tokens[first][decay];
  byId("said-depth").textContent = `Heads are right with ${data.chances[first][decay].map(percent).join(", ")}: ${two(curve.at(-1))} tokens a pass with ${curve.length}.`;
  chart("chart-depth", [
    { kind: "first", name: "tokens a pass", points: [[0, 1], ...curve.map((tokens, place) => [place + 1, tokens])], mark: curve.length },
    { kind: "second", name: "if every head were right", points: [[0, 1], ...curve.map((_, place) => [place + 1, place + 2])] },
  ], { x: "heads K", y: "tokens a pass", most: 7.4, whole: true, label: "Tokens a pass over heads", said: "said-depth" });
}
function showTrees() {
  const data = numbers.trees, spread = value("spread"), budget = value("budget");
  const best = data.dynamic[spread][budget], shape = data.fixed[spread][budget], more = best / shape - 1;
  byId("said-trees").textContent = `With ${plural(data.budget[budget], "node")} the best tree of each context keeps ${two(best)} drafted tokens a pass, `
    + `the best one shape ${two(shape)}: ${more < 0.0005 ? "no difference" : `${percent(more)} more`}.`;
  chart("chart-trees", [
    { kind: "first", name: "dynamic: another tree in each context", points: along(data.budget, data.dynamic[spread]), mark: budget },
    { kind: "second", name: "fixed: one shape", points: along(data.budget, data.fixed[spread]), mark: budget },
  ], { x: "budget in nodes", y: "drafted tokens kept a pass", most: 2.8, whole: true, label: "Drafted tokens kept over budget", said: "said-trees" });
}
function showParticlesAndRejection() {
  const data = numbers.particles, d = value("delta"), k = value("block"), n = value("count");
  byId("said-smc").textContent = `Rejection keeps the law and gives ${two(data.rejection[d][k])} tokens a pass (\u03b1 = ${two(data.alpha[d])}); particles give ${data.fixed[k]}. `
    + `One block drawn from ${plural(data.N[n], "particle")} is at most ${two(data.bound[d][k][n])} from the law (\u03c7\u00b2 of the block: ${two(data.block_chi_square[d][k])}).`;
  chart("chart-smc", [
    { kind: "first", name: "particles: a fixed block, whatever the draft", points: data.delta.map((delta) => [delta, data.fixed[k]]), mark: d },
    { kind: "second", name: "rejection: as far as the draft is kept", points: data.delta.map((delta, place) => [delta, data.rejection[place][k]]), mark: d },
  ], { x: "divergence \u03b4", y: "tokens a pass", most: 5.6, label: "Tokens a pass over divergence", said: "said-smc" });
  chart("chart-bound", [
    { kind: "first", name: `particles: bound for N = ${data.N[n]}`, points: data.delta.map((delta, place) => [delta, data.bound[place][k][n]]), mark: d },
    { kind: "second", name: "rejection: no distance", points: data.delta.map((delta) => [delta, 0]), mark: d },
  ], { x: "divergence \u03b4", y: "total variation from the law, at most", most: 1.05, label: "Distance from the law over divergence", said: "said-smc" });
}
const explorers = [showSpeed, showDepth, showTrees, showParticlesAndRejection];
