// The rounds of the decode: which one is shown, the text as it was then, and who drafted it.
let at = 0, row = 0, timer = null;
const rounds = trace.rounds;
const ofRow = (round, index) => rounds[round].rows.find((one) => one.row === index);
const drafters = [...new Set(rounds.flatMap((round) => round.rows.flatMap((one) => one.by.map(([name]) => name))))];

// The text of every row up to a round, as it was then: tokens with where they come from.
function textsAt(round) {
  let texts = Array.from({ length: trace.rows }, () => []);
  for (let number = 0; number <= round; number += 1) {
    const before = [...texts];
    for (const [moved, source] of rounds[number].moves) texts[moved] = before[source];
    for (const one of rounds[number].rows) {
      const path = pathOf(one);
      const fresh = one.tokens.map((token, place) => ({
        token, piece: one.pieces[place], round: number,
        by: place < one.kept ? draftedBy(one, path[place]) : null,
      }));
      texts[one.row] = [...texts[one.row], ...fresh];
    }
  }
  return texts;
}
function pathOf(one) {
  const path = [];
  one.nodes.forEach((node, place) => { if (node.f === "accepted") path.push(place); });
  return path;
}
// Places in `drafters` of those who drafted a node; none where one drafter did all.
function draftedBy(one, node) {
  return one.by.filter(([, nodes]) => nodes.includes(node + 1)).map(([name]) => drafters.indexOf(name));
}
const names = (by) => (by.length ? by.map((place) => drafters[place]).join(" and ") : trace.facts.drafter);
const letters = (by) => (drafters.length > 1 ? by.map((place) => String.fromCharCode(65 + place)).join("") : "");
const style = (by) => (drafters.length < 2 || !by.length ? "by-0" : by.length > 1 ? "by-several" : `by-${by[0] % 3}`);

// Pieces of a text as spans. A part of a character says nothing before the rest of it is there.
function textInto(panel, tokens) {
  const last = tokens.findLastIndex((one) => one.piece !== "");
  return tokens.map((one, place) => {
    const text = place > last ? shown(one.token) : one.piece;
    const span = make("span", { class: `token ${one.kind}`, title: one.hint }, text.replaceAll("\u23ce", "\u23ce\n"));
    panel.append(span);
    return span;
  });
}
function showText(texts) {
  const panel = byId("text");
  panel.replaceChildren();
  textInto(panel, trace.prompt.map((token, place) => ({ token, piece: trace.pieces[place], kind: "prompt", hint: "prompt" })));
  const spans = textInto(panel, texts[row].map((one) => ({
    ...one,
    kind: `${one.by ? `drafted ${style(one.by)}` : "target"}${one.round === at ? " now" : ""}`,
    hint: `${one.by ? `drafted by ${names(one.by)}` : "the target's own"}, round ${one.round}`,
  })));
  const newest = spans.at(-1);
  if (newest) panel.scrollTop = Math.max(0, newest.offsetTop - panel.clientHeight / 2);
}

// One bar a round: how many tokens it gave, drafted ones below.
function showOverview() {
  const high = 44, counts = rounds.map((_, number) => ofRow(number, row)), wide = 1000 / rounds.length;
  const most = Math.max(1, ...counts.map((one) => one?.tokens.length ?? 0));
  const picture = draw("svg", { viewBox: `0 0 1000 ${high}`, preserveAspectRatio: "none", width: "100%", height: high });
  picture.style.maxWidth = `${rounds.length * 36}px`;
  counts.forEach((one, number) => {
    const x = number * wide, each = (high - 4) / most, kept = one?.kept ?? 0, own = (one?.tokens.length ?? 0) - kept;
    if (number === at) picture.append(draw("rect", { class: "here", x, y: 0, width: wide, height: high }));
    const bar = { x: x + wide * 0.15, width: wide * 0.7 };
    picture.append(draw("rect", { class: "kept", ...bar, y: high - kept * each, height: kept * each }));
    picture.append(draw("rect", { class: "own", ...bar, y: high - (kept + own) * each, height: own * each }));
  });
  byId("overview").replaceChildren(picture);
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
  const one = ofRow(at, row), texts = textsAt(at);
  byId("round").value = at;
  byId("round").setAttribute("aria-valuetext", `round ${at} of ${rounds.length - 1}`);
  byId("number").textContent = `${at} of ${rounds.length - 1}`;
  byId("said").textContent = say(one);
  byId("row").value = row;
  byId("first").disabled = byId("back").disabled = at === 0;
  byId("next").disabled = byId("last").disabled = at === rounds.length - 1;
  const blank = { nodes: [], tokens: [], kept: 0, anchor: texts[row].at(-1)?.token ?? trace.prompt.at(-1), by: [] };
  showOverview();
  showText(texts);
  showTree(one ?? blank);
  showParticles(texts);
  showLookahead(one ?? blank);
  document.body.dataset.round = at;
  document.body.dataset.row = row;
}
function go(to) { at = Math.min(rounds.length - 1, Math.max(0, to)); show(); }
function choose(index) { row = (index + trace.rows) % trace.rows; show(); }
function stop() { clearInterval(timer); timer = null; byId("play").textContent = "Play"; }
function play() {
  if (timer) { stop(); return; }
  if (at === rounds.length - 1) go(0);
  byId("play").textContent = "Stop";
  timer = setInterval(() => { if (at < rounds.length - 1) go(at + 1); else stop(); }, 900);
}
