// The draft of a round: a picture, and the same as a table.
const SIGNS = { accepted: "\u2713", bonus: "+", rejected: "\u2715", pruned: "\u00b7", scratch: "~", anchor: "" };
const FATES = { accepted: "accepted", rejected: "rejected", pruned: "not reached", scratch: "scratch" };
const KINDS = { point: "chosen, not drawn", iid: "drawn from the drafter's law", "no-replace": "drawn from the drafter's law, none twice" };

// Leaves one below the other, parents beside the first of their children; the accepted path first.
function layout(one) {
  const below = new Map([[-1, []]]), places = new Map(), path = pathOf(one), order = { accepted: 0, rejected: 1, pruned: 2, scratch: 3 };
  one.nodes.forEach((node, place) => { below.set(place, []); below.get(node.p).push(place); });
  let line = 0;
  const visit = (node, depth) => {
    places.set(node, { depth, line });
    const children = [...below.get(node)].sort((a, b) => order[one.nodes[a].f] - order[one.nodes[b].f]);
    if (node === (path.at(-1) ?? -1) && one.tokens.length > one.kept) {
      places.set("bonus", { depth: depth + 1, line, parent: node });
      if (children.length) line += 1;
    }
    children.forEach((child, place) => { if (place) line += 1; visit(child, depth + 1); });
  };
  visit(-1, 0);
  return { places, lines: line + 1 };
}

function showTree(one) {
  const { places, lines } = layout(one);
  const deepest = Math.max(...[...places.values()].map((place) => place.depth));
  // As wide as the panel has room for, so that deep drafts fit; narrow nodes say less.
  const wide = Math.min(158, Math.max(104, Math.floor(((byId("tree").clientWidth || 800) + 16) / (deepest + 1))));
  const high = 44, box = { width: wide - 24, height: 36 }, narrow = box.width < 128, most = Math.floor((box.width - 12) / 7.9);
  const width = deepest * wide + box.width + 8, height = lines * high + 6;
  const picture = draw("svg", {
    width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": byId("said").textContent,
  });
  const x = (place) => place.depth * wide + 4, y = (place) => place.line * high + 5, middle = (place) => y(place) + box.height / 2;
  const edge = (from, to, kind) => picture.append(draw("path", {
    class: `edge ${kind}`,
    d: `M${x(from) + box.width} ${middle(from)} C${x(from) + wide - 8} ${middle(from)}, ${x(to) - 18} ${middle(to)}, ${x(to)} ${middle(to)}`,
  }));
  const node = (place, token, kind, note, hint, who = "") => {
    const group = draw("g", { "data-fate": kind }), sign = SIGNS[kind] ? `${SIGNS[kind]} ` : "";
    group.append(draw("title", {}, hint));
    group.append(draw("rect", { class: `node ${kind}`, x: x(place), y: y(place), rx: 6, ...box }));
    group.append(draw("text", { class: kind, x: x(place) + 7, y: y(place) + 15 }, sign + clipped(spaced(shown(token)), most - sign.length - (who ? who.length + 1 : 0))));
    if (who) group.append(draw("text", { class: "who", x: x(place) + box.width - 6, y: y(place) + 15, "text-anchor": "end" }, who));
    group.append(draw("text", { class: "small", x: x(place) + 7, y: y(place) + 30 }, note));
    picture.append(group);
  };
  const drawn = one.nodes.some((other) => other.q !== undefined);
  for (const [name, place] of places) {
    if (name === "bonus") edge(places.get(place.parent), place, "bonus");
    else if (name !== -1) edge(places.get(one.nodes[name].p), place, one.nodes[name].f);
  }
  for (const [name, place] of places) {
    if (name === -1) node(place, one.anchor, "anchor", "last token", `${shown(one.anchor)}: the last token of the text`);
    else if (name === "bonus") node(place, one.tokens[one.kept], "bonus", "bonus", `${shown(one.tokens[one.kept])}: the target's own token`);
    else {
      const { t, f, c, v, s, q, k } = one.nodes[name], by = draftedBy(one, name);
      const more = q === undefined ? `path ${percent(v)}` : `q ${percent(q)}`;
      const note = f === "scratch" ? "" : `p ${percent(c)}${narrow ? "" : ` ${more}`}`;
      const said = [
        `${shown(t)}: ${FATES[f]}`, `drafted by ${names(by)}, ${KINDS[k]}`,
        `the target gives it ${percent(c)} and its path ${percent(v)}`,
        ...(q === undefined ? [] : [`the drafter's law gave it ${percent(q)}`]),
        ...(s === undefined ? [] : [`the drafter gave its path ${percent(s)}`]),
      ];
      node(place, t, f, note, said.join("; "), letters(by));
    }
  }
  byId("tree").replaceChildren(picture);
  byId("wider").hidden = width <= byId("tree").clientWidth && height <= byId("tree").clientHeight;
  const fates = new Set(one.nodes.map((other) => other.f));
  byId("legend-scratch").hidden = !fates.has("scratch");
  byId("legend-by").hidden = drafters.length < 2;
  byId("values").textContent = !one.nodes.length ? "Nothing was drafted in this round: it is plain decoding."
    : drawn ? "p: chance that the target gives the token after its parent, without sampling options; q: chance that the drafter's law gave it."
      : `p: chance that the target gives the token after its parent, without sampling options${narrow ? "" : "; path: of all tokens down to it"}.`;
  byId("table").hidden = !one.nodes.length;
  showNodes(one, drawn);
}

function showNodes(one, drawn) {
  const sure = one.nodes.some((other) => other.s !== undefined), many = drafters.length > 1, table = make("table");
  table.append(headOf([
    "node", "after", "token", "fate", ...(many ? ["drafted by"] : []), "kind", "p", "path", ...(drawn ? ["q"] : []), ...(sure ? ["drafter's own value of the path"] : []),
  ]));
  one.nodes.forEach((other, place) => table.append(rowOf("td", [
    place + 1, other.p < 0 ? "last token" : other.p + 1, spaced(shown(other.t)), FATES[other.f],
    ...(many ? [names(draftedBy(one, place))] : []), other.k, percent(other.c), percent(other.v),
    ...(drawn ? [other.q === undefined ? "" : percent(other.q)] : []), ...(sure ? [other.s === undefined ? "" : percent(other.s)] : []),
  ])));
  byId("nodes").replaceChildren(table);
}
