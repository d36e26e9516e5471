(() => {
  "use strict";
  const longest = (labels) => Math.max(...labels.map((label) => String(label).length));

  // Everything in a chart that was laid out for a fixed width, laid out for the room there is.
  function fitLegends(view, room) {
    for (const layer of view.layer || []) {
      for (const channel of Object.values(layer.encoding || {})) {
        if (channel.legend && channel.scale && channel.scale.domain) {
          const columns = Math.floor(room / (46 + 7 * longest(channel.scale.domain)));
          channel.legend.columns = Math.max(1, Math.min(channel.scale.domain.length, columns));
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
    const spec = structuredClone(original);
    spec.config = Object.assign({}, spec.config, { aria: false });
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
    const spec = JSON.parse(figure.querySelector("script.spec").textContent);
    const target = figure.querySelector(".drawn");
    const still = figure.querySelector("img.still");
    const box = figure.querySelector(".card");
    let shown = null;
    let drawnAt = 0;
    const redraw = async () => {
      const style = getComputedStyle(box);
      const room = box.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
      if (Math.abs(room - drawnAt) < 12) return;
      drawnAt = room;
      if (shown) shown.finalize();
      target.hidden = false;
      shown = await vegaEmbed(target, fitted(spec, room), { actions: false, renderer: "svg" });
      still.hidden = true;
      still.style.display = "none";
      figure.dataset.drawn = "yes";
    };
    await redraw();
    let waiting = 0;
    addEventListener("resize", () => {
      clearTimeout(waiting);
      waiting = setTimeout(redraw, 150);
    });
  }

  for (const figure of document.querySelectorAll("figure.chart")) {
    draw(figure).catch((error) => {
      // The still picture says the same, so a chart that cannot be drawn leaves it in place.
      figure.querySelector(".drawn").hidden = true;
      console.error(error);
    });
  }
})();
