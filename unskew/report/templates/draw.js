// Where a part is folded, its charts are pictures until it is opened; a printed page has those of them.
(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)"), twin = TWIN, boxes = [...document.querySelectorAll(".plot")];
  const draw = async box => {
    let text = box.lastElementChild.textContent;
    if (dark.matches) text = text.replace(/#[0-9a-f]{6}/g, c => twin[c] || c);
    const spec = JSON.parse(text), fits = spec.usermeta && spec.usermeta.fits;
    const facets = spec.usermeta && spec.usermeta.facets;
    if (fits) spec.width = box.clientWidth;
    if (spec.config.legend) spec.config.legend.columns = Math.max(1, Math.min(3, Math.floor(box.clientWidth / 150)));
    if (facets) {
      spec.columns = Math.max(1, Math.min(facets, Math.floor(box.clientWidth / 160)));
      spec.spec.width = box.clientWidth / spec.columns - 60;
    }
    box.at = box.clientWidth;
    const view = document.createElement("div");
    await vegaEmbed(view, spec, {actions: false, renderer: "svg"});
    view.setAttribute("aria-hidden", "true");  // its box says what it shows
    box.firstElementChild.replaceChildren(view);
  };
  const seen = new IntersectionObserver(all => all.forEach(e => {
    if (e.isIntersecting && e.target.clientWidth !== e.target.at) draw(e.target);
  }), {rootMargin: "300px"});
  boxes.forEach(box => {
    const still = box.querySelector("svg, img");
    box.setAttribute("role", "img");
    box.setAttribute("aria-label", still.getAttribute("aria-label") || still.alt || "");
    seen.observe(box);
    new ResizeObserver(() => { if (box.at && box.clientWidth && box.clientWidth !== box.at) draw(box); }).observe(box);
  });
  dark.addEventListener("change", () => boxes.forEach(box => box.at && draw(box)));
})();
