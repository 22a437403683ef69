"use strict";
(() => {
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.setAttribute("role", "status");
  tip.hidden = true;
  document.body.append(tip);
  let current = null;

  const hide = () => {
    if (current) current.classList.remove("on");
    current = null;
    tip.hidden = true;
  };
  const show = (mark) => {
    if (current === mark) return;
    hide();
    current = mark;
    mark.classList.add("on");
    tip.textContent = mark.dataset.tip;
    tip.hidden = false;
    const box = mark.getBoundingClientRect();
    const own = tip.getBoundingClientRect();
    const room = document.documentElement.clientWidth;
    const x = Math.min(Math.max(box.left + box.width / 2 - own.width / 2, 8), room - own.width - 8);
    const above = box.top - own.height - 8;
    tip.style.left = `${x + scrollX}px`;
    tip.style.top = `${(above < 4 ? box.bottom + 8 : above) + scrollY}px`;
  };
  const centre = (mark) => {
    const box = mark.getBoundingClientRect();
    return [box.left + box.width / 2, box.top + box.height / 2];
  };
  // the nearest mark in a direction; sideways counts twice, so that rows and columns are followed
  const beside = (marks, mark, dx, dy) => {
    const [x, y] = centre(mark);
    let best = null;
    let least = Infinity;
    for (const other of marks) {
      const [ox, oy] = centre(other);
      const along = (ox - x) * dx + (oy - y) * dy;
      if (other === mark || along < 0.5) continue;
      const cost = along + 2 * Math.abs((ox - x) * dy + (oy - y) * dx);
      if (cost < least) [best, least] = [other, cost];
    }
    return best;
  };
  const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

  for (const plot of document.querySelectorAll("[data-plot]")) {
    const marks = [...plot.querySelectorAll(".mark")];
    if (!marks.length) continue;
    let last = marks[0];
    for (const mark of marks) {
      const title = mark.querySelector("title");
      mark.dataset.tip = title.textContent;
      title.remove(); // the browser's own tooltip would stand beside ours
      mark.addEventListener("pointerenter", () => show(mark));
      mark.addEventListener("pointerleave", hide);
      mark.addEventListener("click", () => show((last = mark)));
    }
    const picture = plot.querySelector("svg[role=img]");
    plot.tabIndex = 0;
    plot.setAttribute("role", "group");
    plot.setAttribute("aria-label", `${picture.getAttribute("aria-label")} Arrow keys read the values.`);
    plot.addEventListener("focus", () => plot.matches(":focus-visible") && show(last));
    plot.addEventListener("blur", hide);
    plot.addEventListener("keydown", (event) => {
      if (event.key === "Escape") return hide();
      const move = moves[event.key];
      const next = event.key === "Home" ? marks[0] : event.key === "End" ? marks.at(-1) : move && beside(marks, last, ...move);
      if (!next) return;
      event.preventDefault();
      last = next;
      next.scrollIntoView({ block: "nearest" });
      show(next);
    });
  }
  addEventListener("keydown", (event) => event.key === "Escape" && hide());
})();
