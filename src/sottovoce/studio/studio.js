// The page of the studio. It asks the server for everything, or shows what an exported file holds.
"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  const frozen = $("frozen") ? JSON.parse($("frozen").textContent) : null;
  const token = new URLSearchParams(location.search).get("token") || "";
  const { element, key, numbers, named, circle, pressable, freePlace } = Drawing;
  const chosen = { links: new Set(), inside: new Set(), target: 0, protection: "plain" };
  const drawn = { agents: [], links: new Set(), first: null };
  let offered = null, lesson = null, number = 0, waiting = null, asked = 0, heard = null;

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
  // The graph that the picture shows: of the lesson, of the drawing, or of a name.
  const drawing = () => $("graph").value === "draw";
  const graph = () => {
    if (drawing()) return { agents: drawn.agents.length, links: numbers(drawn.links) };
    if (lesson && lesson.wish.graph === $("graph").value) return lesson;
    return named($("graph").value);
  };
  const drawAs = ({ agents, links }) => {
    drawn.agents = [...Array(agents).keys()].map((agent) => circle(agent, agents));
    drawn.links = new Set(links.map(([i, j]) => key(i, j)));
    drawn.first = null;
  };
  const graphText = () => (drawing() ? "links:" + [...drawn.links].sort().join(",") : $("graph").value);
  const place = (agent, agents) => (drawing() ? drawn.agents[agent] : circle(agent, agents));

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
      element("text", { x, y: y + 10, class: "learned", id: `learned-${agent}` }, group);
      pressable(group, `agent ${agent}`, kinds.length > 1, () => touch(agent));
    }
    $("drawing").hidden = !drawing();
    learned();
  };
  const tap = (i, j) => {
    const one = key(i, j);
    if (!chosen.links.delete(one)) chosen.links.add(one);
    changed();
  };
  const touch = (agent) => {
    if (drawing() && $("click").value === "join") {
      if (drawn.first === null) drawn.first = agent;
      else {
        const one = key(drawn.first, agent);
        if (drawn.first !== agent && !drawn.links.delete(one)) drawn.links.add(one);
        drawn.first = null;
      }
      forget();
      changed();
      return;
    }
    if ($("click").value === "inside") {
      if (!chosen.inside.delete(agent) && agent !== chosen.target) chosen.inside.add(agent);
    } else if (!chosen.inside.has(agent)) chosen.target = agent;
    changed();
  };
  const addAgent = (x, y) => {
    if (!offered || drawn.agents.length >= offered.most_agents) return say(`The studio shows at most ${offered.most_agents} agents.`, true);
    drawn.agents.push([x, y]);
    draw();
  };
  $("picture").addEventListener("click", (event) => {
    if (!drawing() || $("click").value !== "join") return;
    const box = $("picture").getBoundingClientRect();
    addAgent(((event.clientX - box.x) / box.width) * 400, ((event.clientY - box.y) / box.height) * 320);
  });

  const learned = () => {
    const shown = lesson && lesson.accuracy.length && lesson.wish.graph === graphText();
    const each = shown ? lesson.accuracy[lesson.accuracy.length - 1][1] : [];
    for (const text of document.querySelectorAll("#picture .learned")) {
      const accuracy = each[Number(text.id.split("-")[1])];
      text.previousSibling.setAttribute("dy", accuracy === undefined ? 0 : -5);
      text.textContent = accuracy === undefined ? "" : accuracy.toFixed(2).replace(/^0/, "");
    }
  };
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
    learned();
  };
  const round3 = (value) => (value === null || value === undefined ? "-" : Number(value.toPrecision(3)).toString());
  const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
  const tiles = () => {
    const points = lesson ? lesson.accuracy : [];
    $("tile-accuracy").textContent = points.length ? mean(points[points.length - 1][1]).toFixed(3) : "-";
    $("tile-epsilon").textContent = lesson ? (lesson.epsilon === null ? "none" : round3(lesson.epsilon)) : "-";
    const lower = lesson && lesson.epsilon_lower;
    const waits = lesson && lesson.state === "done" ? "..." : "-";
    $("tile-lower").textContent = lower ? (lower.epsilon >= lower.ceiling ? "≥ " : "") + round3(lower.epsilon) : waits;
    const said = [];
    if (lesson && lesson.commonest) said.push(`Always the commonest answer: accuracy ${lesson.commonest.toFixed(3)}.`);
    if (lower) said.push(`ε from below: what canaries refuted, at most ${round3(lower.ceiling)} with this number of trials. ε counts one record, everything overheard and known to the agents inside which you sit.`);
    $("tile-said").textContent = said.join(" ");
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
  const show = (found) => {
    heard = found;
    tiles();
    showRecord("truth", found.truth);
    showRecord("found", found.heard ? found.found : null, found.truth);
    $("verdict").textContent = found.said;
    const rank = found.heard ? found.identification : null, known = rank && rank.top1 !== null;
    $("tile-top1").textContent = known ? `${(100 * rank.top1).toFixed(rank.targets > 1 ? 1 : 0)}%` : "-";
    $("tile-permitted").textContent = known && rank.permitted !== null ? `; proof permits ${(100 * rank.permitted).toFixed(1)}%` : "";
    if (known && rank.epsilon !== null) $("tile-epsilon").textContent = round3(rank.epsilon);
    const whole = lesson.wish.data === "digits" ? "one of" : "what is in";
    $("truth-said").textContent = found.batch > 1 ? `private: ${whole} ${found.batch} records` : "private";
    document.body.dataset.error = found.heard && found.error !== undefined ? found.error : "";
    document.body.dataset.blind = found.blind_error === undefined ? "" : found.blind_error;
    document.body.dataset.top1 = known ? rank.top1 : "";
    document.body.dataset.permitted = known && rank.permitted !== null ? rank.permitted : "";
  };
  const showNobody = (text) => {
    heard = null;
    tiles();
    showRecord("truth", null);
    showRecord("found", null);
    $("verdict").textContent = text;
    $("tile-top1").textContent = "-";
    $("tile-permitted").textContent = "";
    $("truth-said").textContent = "private";
    for (const name of ["error", "blind", "top1", "permitted"]) document.body.dataset[name] = "";
  };
  const wanted = () => ({
    agents: [...chosen.inside].sort(), links: numbers(new Set([...chosen.links].sort())),
    target: chosen.target, protection: chosen.protection,
  });
  const nobody = () => !chosen.links.size && !chosen.inside.size;
  const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);
  const changed = async () => {
    draw();
    remember();
    const turn = (asked += 1), want = wanted();
    if (!lesson || lesson.state !== "done") return;
    if (lesson.wish.graph !== graphText()) return showNobody("Train with this graph, then listen.");
    if (nobody()) return showNobody("Click a link, then a second one of the same agent.");
    try {
      let found;
      if (frozen) {
        found = frozen.heard.find((one) => same(one.asked, want));
        if (!found) return showNobody("This listener is not in the exported file.");
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
    history.replaceState(null, "", location.pathname + location.search + "#" + choices());
  };
  const choices = () => new URLSearchParams({
    ...wish(), epsilon: $("epsilon").value, links: [...chosen.links].join(","),
    inside: [...chosen.inside].join(","), target: chosen.target, protection: chosen.protection,
  });
  const recall = () => {
    const found = new URLSearchParams(location.hash.slice(1));
    chosen.links.clear();
    chosen.inside.clear();
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
      $("graph").value = "draw";
      drawAs(named(text));
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
    say("");
    await changed();
  };
  const busy = (training) => {
    $("train").disabled = training;
    $("stop").disabled = !training;
    $("export").disabled = training || !lesson || lesson.state !== "done";
  };
  const train = async () => {
    const alone = drawing() ? drawn.agents.findIndex((_, agent) => !numbers(drawn.links).flat().includes(agent)) : -1;
    if (alone >= 0) return say(`Agent ${alone} has no link: join it with another agent.`, true);
    if (drawing() && !drawn.agents.length) return say("Draw agents and links first.", true);
    if ($("click").value === "join") $("click").value = "target";
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
  const command = async () => {
    if (frozen) return heard ? heard.command : lesson.command;
    return (await ask("/api/command", { wish: wish(), listener: nobody() ? null : wanted() })).command;
  };
  const setDrawing = (before) => {
    if (drawing() && !drawn.agents.length) drawAs(before);
    $("click").querySelector('[value="join"]').hidden = !drawing();
    $("click").value = drawing() ? "join" : "target";
  };

  const wire = () => {
    $("choose").addEventListener("submit", (event) => { event.preventDefault(); train(); });
    $("stop").addEventListener("click", async () => { try { await ask(`/api/trainings/${number}/stop`, {}); } catch (error) { say(error.message, true); } });
    $("command").addEventListener("click", async () => { try { tell(await command()); } catch (error) { say(error.message, true); } });
    $("share").addEventListener("click", () => tell(`sottovoce studio --choices '${choices()}'\n\nIn a studio that runs already, put # and the part in quotes behind its address.`));
    window.addEventListener("hashchange", () => { recall(); setDrawing({ agents: 0, links: [] }); forget(); changed(); });
    $("export").addEventListener("click", async () => {
      const answer = await fetch(`/api/trainings/${number}/export`, { headers: { "x-sottovoce-token": token } });
      const link = document.createElement("a");
      link.href = URL.createObjectURL(await answer.blob());
      link.download = "sottovoce-studio.html";
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    });
    let before = graph();
    $("graph").addEventListener("change", () => { setDrawing(before); before = graph(); forget(); changed(); });
    $("add").addEventListener("click", () => addAgent(...freePlace(drawn.agents)));
    $("clear").addEventListener("click", () => { drawAs({ agents: 0, links: [] }); forget(); changed(); });
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
    if (frozen) {
      lesson = frozen.lesson;
      const only = lesson.wish;
      fill({ ...frozen.choices, default: only });
      setGraph(only.graph);
      for (const id of ["train", "stop", "share", "export", "add", "clear", "mechanism", "data", "epsilon", "graph", "rounds", "seed"]) $(id).disabled = true;
      const first = frozen.heard[frozen.heard.length - 1];
      wire();
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
    wire();
    recall();
    setDrawing({ agents: 0, links: [] });
    $("mechanism").disabled = Boolean($("epsilon").value);
    draw();
    curve();
    document.body.dataset.ready = "yes";
  };
  begin();
})();
