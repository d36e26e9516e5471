// The page of the studio. It asks the server for everything, or shows what an exported file holds.
"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  const frozen = $("frozen") ? JSON.parse($("frozen").textContent) : null;
  const token = new URLSearchParams(location.search).get("token") || "";
  const SVG = "http://www.w3.org/2000/svg";
  const chosen = { links: new Set(), inside: new Set(), target: 0, protection: "plain" };
  const drawn = { agents: [], links: new Set(), first: null };
  let offered = null, lesson = null, number = 0, waiting = null, asked = 0;

  const ask = async (path, body) => {
    const answer = await fetch(path, {
      method: body === undefined ? "GET" : "POST",
      headers: { "x-sottovoce-token": token, "content-type": "application/json" },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
    const text = await answer.text();
    if (!answer.ok) {
      let reason = text;
      try { reason = JSON.parse(text).error; } catch { /* a plain sentence */ }
      throw new Error(reason);
    }
    return JSON.parse(text);
  };
  const say = (text, bad = false) => { $("said").textContent = text; $("said").classList.toggle("bad", bad); };
  const element = (name, attributes, parent) => {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    parent.append(made);
    return made;
  };
  const key = (i, j) => `${Math.min(i, j)}-${Math.max(i, j)}`;
  const numbers = (set) => [...set].map((one) => one.split("-").map(Number));

  // The graph that the picture shows: of the lesson, of the drawing, or of a name.
  const named = (text) => {
    const [kind, rest] = [text.split(":")[0], text.split(":").slice(1).join(":")];
    const pairs = [], n = parseInt(rest, 10);
    if (kind === "links") for (const link of rest.split(",")) pairs.push(link.split("-").map(Number));
    if (kind === "ring") for (let i = 0; i < n; i += 1) pairs.push([i, (i + 1) % n]);
    if (kind === "path") for (let i = 1; i < n; i += 1) pairs.push([i - 1, i]);
    if (kind === "star") for (let i = 1; i < n; i += 1) pairs.push([0, i]);
    if (kind === "complete") for (let i = 0; i < n; i += 1) for (let j = 0; j < i; j += 1) pairs.push([j, i]);
    if (kind === "grid") {
      const [rows, columns] = rest.split("x").map(Number);
      for (let r = 0; r < rows; r += 1) for (let c = 0; c < columns; c += 1) {
        if (c) pairs.push([r * columns + c - 1, r * columns + c]);
        if (r) pairs.push([(r - 1) * columns + c, r * columns + c]);
      }
    }
    return { agents: 1 + Math.max(0, ...pairs.flat()), links: pairs };
  };
  const drawing = () => $("graph").value === "draw";
  const graph = () => {
    if (drawing()) return { agents: drawn.agents.length, links: numbers(drawn.links) };
    if (lesson && lesson.wish.graph === $("graph").value) return lesson;
    return named($("graph").value);
  };
  const graphText = () => (drawing() ? "links:" + [...drawn.links].sort().join(",") : $("graph").value);
  const place = (agent, agents) => {
    if (drawing()) return drawn.agents[agent];
    const turn = (2 * Math.PI * agent) / agents - Math.PI / 2;
    return [200 + 140 * Math.cos(turn), 160 + 125 * Math.sin(turn)];
  };

  const pressable = (made, label, pressed, act) => {
    made.setAttribute("tabindex", "0");
    made.setAttribute("role", "button");
    made.setAttribute("aria-label", label);
    made.setAttribute("aria-pressed", String(pressed));
    made.addEventListener("click", (event) => { event.stopPropagation(); act(); });
    made.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      act();
      const again = document.querySelector(`#picture [aria-label="${label}"]`);
      if (again) again.focus();
    });
  };
  const draw = () => {
    const picture = $("picture"), { agents, links } = graph();
    picture.replaceChildren();
    for (const [i, j] of links) {
      const [a, b] = [place(i, agents), place(j, agents)], tapped = chosen.links.has(key(i, j));
      const group = element("g", { class: tapped ? "tapped" : "" }, picture);
      const ends = { x1: a[0], y1: a[1], x2: b[0], y2: b[1] };
      element("line", { class: "link", ...ends }, group);
      const wire = element("line", { class: "wire", ...ends }, group);
      pressable(wire, `link ${key(i, j)}`, tapped, () => tap(i, j));
    }
    for (let agent = 0; agent < agents; agent += 1) {
      const [x, y] = place(agent, agents);
      const kinds = ["agent"];
      if (agent === chosen.target) kinds.push("target");
      if (chosen.inside.has(agent) || drawn.first === agent) kinds.push("inside");
      const group = element("g", { class: kinds.join(" ") }, picture);
      element("circle", { cx: x, cy: y, r: 20 }, group);
      element("text", { x, y }, group).textContent = agent;
      pressable(group, `agent ${agent}`, kinds.length > 1, () => touch(agent));
    }
    $("drawing").hidden = !drawing();
  };
  const tap = (i, j) => {
    const one = key(i, j);
    if (!chosen.links.delete(one)) chosen.links.add(one);
    changed();
  };
  const touch = (agent) => {
    if (drawing() && (!lesson || lesson.wish.graph !== graphText())) {
      if (drawn.first === null) drawn.first = agent;
      else {
        const one = key(drawn.first, agent);
        if (drawn.first !== agent && !drawn.links.delete(one)) drawn.links.add(one);
        drawn.first = null;
      }
      draw();
      return;
    }
    if ($("click").value === "inside") {
      if (!chosen.inside.delete(agent) && agent !== chosen.target) chosen.inside.add(agent);
    } else if (!chosen.inside.has(agent)) chosen.target = agent;
    changed();
  };
  $("picture").addEventListener("click", (event) => {
    if (!drawing() || drawn.agents.length >= (offered ? offered.most_agents : 16)) return;
    const box = $("picture").getBoundingClientRect();
    drawn.agents.push([((event.clientX - box.x) / box.width) * 400, ((event.clientY - box.y) / box.height) * 320]);
    draw();
  });

  const curve = () => {
    const picture = $("curve"), points = lesson ? lesson.accuracy : [];
    picture.replaceChildren();
    for (const level of [0, 0.5, 1]) {
      const y = 135 - 120 * level;
      element("line", { x1: 28, x2: 395, y1: y, y2: y }, picture);
      element("text", { x: 4, y: y + 3 }, picture).textContent = level.toFixed(1);
    }
    if (!points.length) return;
    const last = lesson.wish.rounds;
    for (let agent = 0; agent < points[0][1].length; agent += 1) {
      const steps = points.map(([round, each]) => `${28 + (367 * round) / last} ${135 - 120 * each[agent]}`);
      element("path", { d: "M" + steps.join("L") }, picture);
    }
    element("text", { x: 395, y: 148, "text-anchor": "end" }, picture).textContent = `round ${last}`;
  };
  const round3 = (value) => (value === null || value === undefined ? "-" : Number(value.toPrecision(3)).toString());
  const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
  const tiles = () => {
    const points = lesson ? lesson.accuracy : [];
    $("tile-accuracy").textContent = points.length ? mean(points[points.length - 1][1]).toFixed(3) : "-";
    $("tile-epsilon").textContent = lesson ? (lesson.epsilon === null ? "none" : round3(lesson.epsilon)) : "-";
    const lower = lesson && lesson.epsilon_lower;
    $("tile-lower").textContent = lower ? (lower.epsilon >= lower.ceiling ? "≥ " : "") + round3(lower.epsilon) : "-";
    $("tile-said").textContent = lower
      ? `ε from below: what canaries refuted; no more than ${round3(lower.ceiling)} can be refuted with this number of trials. ε counts one record, everything overheard.`
      : "";
  };

  const showRecord = (id, value, truth) => {
    const canvas = $(id), list = $(id + "-words"), digits = lesson && lesson.wish.data === "digits";
    canvas.hidden = !digits;
    list.replaceChildren();
    const context = canvas.getContext("2d");
    context.clearRect(0, 0, 28, 28);
    if (!value) return;
    if (digits) {
      const image = context.createImageData(28, 28);
      value.forEach((grey, at) => image.data.set([grey, grey, grey, 255], 4 * at));
      context.putImageData(image, 0, 0);
      return;
    }
    const known = new Set(truth || value);
    for (const one of value.slice(0, 24)) {
      const item = document.createElement("li");
      item.textContent = one;
      item.className = known.has(one) ? "right" : "wrong";
      list.append(item);
    }
    if (value.length > 24) {
      const item = document.createElement("li");
      item.textContent = `and ${value.length - 24} more`;
      list.append(item);
    }
  };
  const sentence = (found) => {
    const who = `The listener at ${found.listener}`, whose = `agent ${found.target}'s round ${found.round}`;
    if (!found.heard) return `${who} reads nothing of ${whose}: ${found.why}.`;
    const rank = found.identification, parts = [];
    if (found.error !== undefined) {
      const better = found.error < found.blind_error;
      parts.push(`the nearest image is off by ${round3(found.error)}, where a blind guess is off by ${round3(found.blind_error)}` + (better ? "" : ", so that nothing was gained"));
    } else if (found.exact) parts.push("every entry of the private batch is right");
    else parts.push(`${(100 * found.precision).toFixed(0)} % of what it reads is right, and it reads ${(100 * found.recall).toFixed(0)} % of what is there`);
    if (rank.top1 !== null) {
      const times = rank.targets === 1 ? `the record ranks ${rank.median_rank} of ${rank.candidates + 1}` : `${(100 * rank.top1).toFixed(1)} % of ${rank.targets} records rank first among ${rank.candidates + 1}`;
      parts.push(times + (rank.permitted === null ? ` (chance ${(100 * rank.chance).toFixed(1)} %)` : `; the proof permits ${(100 * rank.permitted).toFixed(1)} %`));
    }
    return `${who} reads ${whose} by ${found.attack}: ${parts.join("; ")}.`;
  };
  const show = (found) => {
    showRecord("truth", found.truth);
    showRecord("found", found.heard ? found.found : null, found.truth);
    $("verdict").textContent = sentence(found);
    const rank = found.heard ? found.identification : null;
    $("tile-top1").textContent = rank && rank.top1 !== null ? `${(100 * rank.top1).toFixed(rank.targets > 1 ? 1 : 0)} %` : "-";
    $("truth-said").textContent = found.batch > 1 ? `private: ${found.batch} records, one shown or all entries` : "private";
    document.body.dataset.error = found.heard && found.error !== undefined ? found.error : "";
    document.body.dataset.blind = found.blind_error === undefined ? "" : found.blind_error;
    document.body.dataset.top1 = rank && rank.top1 !== null ? rank.top1 : "";
    document.body.dataset.permitted = rank && rank.permitted !== null ? rank.permitted : "";
  };
  const wanted = () => ({
    agents: [...chosen.inside].sort(), links: numbers(new Set([...chosen.links].sort())),
    target: chosen.target, protection: chosen.protection,
  });
  const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);
  const changed = async () => {
    draw();
    remember();
    if (!lesson || lesson.state !== "done" || (!chosen.links.size && !chosen.inside.size)) return;
    const turn = (asked += 1), want = wanted();
    try {
      let found;
      if (frozen) {
        found = frozen.heard.find((one) => same(one.asked, want));
        if (!found) { say("This listener is not in the exported file."); return; }
        say("");
      } else {
        say("Listening ...");
        found = await ask(`/api/trainings/${number}/listen`, want);
        say("");
      }
      if (turn === asked) show(found);
    } catch (error) { say(error.message, true); }
  };

  const wish = () => ({
    graph: graphText(), mechanism: $("mechanism").value, data: $("data").value,
    epsilon: $("epsilon").value ? Number($("epsilon").value) : null,
    rounds: Number($("rounds").value), seed: Number($("seed").value),
  });
  const remember = () => {
    if (frozen) return;
    $("shown").hidden = true; // A command or an address that was told is of earlier choices.
    const found = { ...wish(), epsilon: $("epsilon").value, links: [...chosen.links].join(","), inside: [...chosen.inside].join(","), target: chosen.target, protection: chosen.protection };
    history.replaceState(null, "", location.pathname + location.search + "#" + new URLSearchParams(found));
  };
  const recall = () => {
    const found = new URLSearchParams(location.hash.slice(1));
    for (const name of ["mechanism", "data", "epsilon", "rounds", "seed"]) if (found.has(name)) $(name).value = found.get(name);
    if (found.has("graph")) setGraph(found.get("graph"));
    for (const one of (found.get("links") || "").split(",").filter(Boolean)) chosen.links.add(one);
    for (const one of (found.get("inside") || "").split(",").filter(Boolean)) chosen.inside.add(Number(one));
    if (found.has("target")) chosen.target = Number(found.get("target"));
    if (found.has("protection")) setProtection(found.get("protection"));
  };
  const setProtection = (value) => {
    const box = document.querySelector(`input[name="protection"][value="${CSS.escape(value)}"]`);
    if (box) { box.checked = true; chosen.protection = value; }
  };
  const setGraph = (text) => {
    if (text.startsWith("links:")) {
      const found = named(text);
      $("graph").value = "draw";
      drawn.agents = [...Array(found.agents).keys()].map((agent) => {
        const turn = (2 * Math.PI * agent) / found.agents - Math.PI / 2;
        return [200 + 140 * Math.cos(turn), 160 + 125 * Math.sin(turn)];
      });
      drawn.links = new Set(found.links.map(([i, j]) => key(i, j)));
      return;
    }
    if (![...$("graph").options].some((one) => one.value === text)) $("graph").append(new Option(text, text));
    $("graph").value = text;
  };
  const forget = () => {
    const { agents, links } = graph(), there = new Set(links.map(([i, j]) => key(i, j)));
    for (const one of [...chosen.links]) if (!there.has(one)) chosen.links.delete(one);
    for (const one of [...chosen.inside]) if (one >= agents) chosen.inside.delete(one);
    if (chosen.target >= agents) chosen.target = 0;
  };
  const watch = async () => {
    try {
      lesson = await ask(`/api/trainings/${number}`);
    } catch (error) { say(error.message, true); busy(false); return; }
    curve();
    tiles();
    const done = lesson.accuracy.length ? lesson.accuracy[lesson.accuracy.length - 1][0] : 0;
    if (lesson.state === "training") {
      say(`Round ${done} of ${lesson.wish.rounds} ...`);
      waiting = setTimeout(watch, 300);
      return;
    }
    busy(false);
    if (lesson.state === "failed") say(lesson.problem, true);
    if (lesson.state === "stopped") say(`Stopped after round ${done}.`);
    if (lesson.state !== "done") return;
    document.body.dataset.trained = String(number);
    if (!lesson.epsilon_lower) waiting = setTimeout(async () => {
      for (let tries = 0; tries < 200 && lesson.state === "done" && !lesson.epsilon_lower; tries += 1) {
        const mine = number;
        try { const found = await ask(`/api/trainings/${mine}`); if (mine === number) lesson = found; } catch { return; }
        tiles();
        await new Promise((next) => setTimeout(next, 500));
      }
    }, 300);
    if (chosen.links.size || chosen.inside.size) await changed();
    else { say(""); $("verdict").textContent = "Trained. Click a link, then a second one of the same agent."; }
  };
  const busy = (training) => {
    $("train").disabled = training;
    $("stop").disabled = !training;
    $("export").disabled = training || !lesson || lesson.state !== "done";
  };
  const train = async () => {
    clearTimeout(waiting);
    forget();
    delete document.body.dataset.trained;
    say("Starting ...");
    busy(true);
    try {
      lesson = await ask("/api/trainings", wish());
      number = lesson.number;
      draw();
      remember();
      await watch();
    } catch (error) { say(error.message, true); busy(false); }
  };
  const tell = (text) => { $("shown").textContent = text; $("shown").hidden = false; };
  const command = () => {
    if (lesson && lesson.command) return lesson.command;
    return "sottovoce studio";
  };

  const wire = () => {
    $("choose").addEventListener("submit", (event) => { event.preventDefault(); train(); });
    $("stop").addEventListener("click", async () => { try { await ask(`/api/trainings/${number}/stop`, {}); } catch (error) { say(error.message, true); } });
    $("command").addEventListener("click", () => tell(command()));
    $("share").addEventListener("click", () => { remember(); tell(`${location.origin}/?token=TOKEN${location.hash}\n(TOKEN is that of the studio in which it is opened)`); });
    $("export").addEventListener("click", async () => {
      const answer = await fetch(`/api/trainings/${number}/export`, { headers: { "x-sottovoce-token": token } });
      const link = document.createElement("a");
      link.href = URL.createObjectURL(await answer.blob());
      link.download = "sottovoce-studio.html";
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    });
    $("graph").addEventListener("change", () => { forget(); draw(); remember(); });
    $("data").addEventListener("change", () => { $("rounds").value = offered.rounds[$("data").value]; remember(); });
    $("epsilon").addEventListener("change", () => { $("mechanism").disabled = Boolean($("epsilon").value); remember(); });
    for (const box of document.querySelectorAll('input[name="protection"]')) {
      box.addEventListener("change", () => { chosen.protection = box.value; changed(); });
    }
  };
  const fill = (found) => {
    offered = found;
    for (const [name, entries] of [["mechanism", found.mechanisms], ["data", found.data]]) {
      $(name).replaceChildren(...Object.entries(entries).map(([value, text]) => new Option(text, value)));
    }
    $("epsilon").replaceChildren(new Option("none", ""), ...found.epsilons.map((one) => new Option(`ε = ${one} for one record`, one)));
    $("graph").replaceChildren(...found.graphs.map((one) => new Option(one, one)), new Option("draw one", "draw"));
    for (const [name, value] of Object.entries(found.default)) if ($(name)) $(name).value = value === null ? "" : value;
  };
  const begin = async () => {
    wire();
    if (frozen) {
      lesson = frozen.lesson;
      const only = lesson.wish;
      fill({ mechanisms: { [only.mechanism]: only.mechanism }, data: { [only.data]: only.data }, epsilons: only.epsilon ? [only.epsilon] : [], graphs: [], rounds: {}, most_agents: 16, default: only });
      setGraph(only.graph);
      for (const id of ["train", "stop", "share", "export", "mechanism", "data", "epsilon", "graph", "rounds", "seed"]) $(id).disabled = true;
      const first = frozen.heard[frozen.heard.length - 1];
      curve();
      tiles();
      if (first) {
        chosen.target = first.asked.target;
        first.asked.links.forEach(([i, j]) => chosen.links.add(key(i, j)));
        first.asked.agents.forEach((one) => chosen.inside.add(one));
        setProtection(first.asked.protection);
      }
      await changed();
      return;
    }
    try { fill(await ask("/api/choices")); } catch (error) { say(error.message, true); return; }
    recall();
    $("mechanism").disabled = Boolean($("epsilon").value);
    draw();
    curve();
    document.body.dataset.ready = "yes";
  };
  begin();
})();
