(() => {
  "use strict";
  const longest = (labels) => Math.max(...labels.map((label) => String(label).length));

  const dark = matchMedia("(prefers-color-scheme: dark)");
  // The theme's colours on a dark page; the lightness of lines is raised, their hue stays.
  const nightly = {
    "#222222": "#e9e7e2", "#5A5A5A": "#a9adb5", "#E6E6E6": "#353a42", "#999999": "#6d737c",
    "#0072B2": "#4fb0ea", "#D55E00": "#f08a3c", "#009E73": "#35c79c", "#4D4D4D": "#bdbdbd",
    white: "#15171b",
  };

  function wrapped(label, most) {
    const lines = [""];
    for (const word of String(label).split(" ")) {
      const last = lines.length - 1;
      if (lines[last] && lines[last].length + 1 + word.length > most) lines.push(word);
      else lines[last] += (lines[last] && " ") + word;
    }
    return lines;
  }

  // Everything in a chart that was laid out for a fixed width, laid out for the room there is.
  function fitLegends(view, room) {
    for (const layer of view.layer || []) {
      for (const channel of Object.values(layer.encoding || {})) {
        if (channel.legend && channel.scale && channel.scale.domain) {
          const labels = channel.scale.domain;
          const columns = Math.floor(room / (46 + 7 * longest(labels)));
          channel.legend.columns = Math.max(1, Math.min(labels.length, columns));
          if (columns > 0) continue;
          const most = Math.floor((room - 46) / 6.6);
          const lines = Object.fromEntries(labels.map((one) => [one, wrapped(one, most)]));
          channel.legend.labelExpr = `${JSON.stringify(lines)}[datum.label]`;
        }
      }
    }
  }

  function fitRuleNames(spec, room) {
    for (const layer of spec.layer || []) {
      const x = layer.encoding && layer.encoding.x;
      if (!layer.mark || layer.mark.type !== "text" || !x || x.value === undefined) continue;
      if (room < 560) {
        layer.encoding.x = { value: { expr: "width" } };
        Object.assign(layer.mark, { align: "right", baseline: "bottom", dy: -3 });
      } else {
        layer.encoding.x = { value: { expr: "width + 6" } };
      }
    }
  }

  function fitted(original, room) {
    const colour = (key, value) => (dark.matches && nightly[value]) || value;
    const spec = JSON.parse(original, colour);
    spec.config = Object.assign({}, spec.config, { aria: false });
    spec.background = "transparent";
    if (spec.concat) {
      const wanted = spec.columns || spec.concat.length;
      const columns = room < 560 ? 1 : room < 860 ? Math.min(2, wanted) : wanted;
      const width = Math.floor((room - 32 - 36 * (columns - 1)) / columns);
      spec.columns = columns;
      for (const view of spec.concat) {
        const square = view.width === view.height;
        view.width = Math.min(view.width, Math.max(170, square ? width - 10 : width - 70));
        if (square) view.height = view.width;
        fitLegends(view, width);
      }
      return spec;
    }
    fitRuleNames(spec, room);
    fitLegends(spec, room - 60);
    const side = room < 560 ? 8 : 16;
    spec.padding = { left: side, right: side, top: 12, bottom: 12 };
    spec.autosize = { type: "fit-x", contains: "padding" };
    spec.width = Math.min(room, 860);
    if (room < 560) spec.height = Math.min(spec.height, 280);
    return spec;
  }

  async function draw(figure) {
    const spec = figure.querySelector("script.spec").textContent;
    const target = figure.querySelector(".drawn");
    const still = figure.querySelector("img.still");
    const box = figure.querySelector(".card");
    let shown = null;
    let drawnAt = "";
    const redraw = async () => {
      const style = getComputedStyle(box);
      const room = box.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
      const look = `${Math.round(room / 12)} ${dark.matches}`;
      if (look === drawnAt) return;
      drawnAt = look;
      if (shown) shown.finalize();
      target.hidden = false;
      shown = await vegaEmbed(target, fitted(spec, room), { actions: false, renderer: "svg" });
      still.hidden = true;
      still.style.display = "none";
      figure.dataset.drawn = "yes";
    };
    await redraw();
    dark.addEventListener("change", redraw);
    let waiting = 0;
    addEventListener("resize", () => {
      clearTimeout(waiting);
      waiting = setTimeout(redraw, 150);
    });
  }

  // A table says that it scrolls where a part of it is out of sight.
  const tellWide = () => {
    for (const box of document.querySelectorAll(".scroll")) {
      box.toggleAttribute("data-wide", box.scrollWidth > box.clientWidth + 1);
    }
  };
  tellWide();
  addEventListener("resize", tellWide);
  addEventListener("toggle", tellWide, true);

  for (const figure of document.querySelectorAll("figure.chart")) {
    draw(figure).catch((error) => {
      // The still picture says the same, so a chart that cannot be drawn leaves it in place.
      figure.querySelector(".drawn").hidden = true;
      console.error(error);
    });
  }
})();
