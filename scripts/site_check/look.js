// Runs inside a page; returns the facts that pages.py judges. It judges nothing itself.
async () => {
  // What a click would open is part of the page.
  document.querySelectorAll("details").forEach((details) => (details.open = true));
  await document.fonts.ready;

  const name = (element) => {
    const classes = [...element.classList].slice(0, 2).map((one) => "." + one);
    return element.tagName.toLowerCase() + (element.id ? "#" + element.id : "") + classes.join("");
  };

  const images = [];
  for (const image of document.images) {
    image.loading = "eager";
    await image.decode().catch(() => {});
    const box = image.getBoundingClientRect();
    images.push({
      src: image.getAttribute("src"),
      alt: image.getAttribute("alt"),
      loaded: image.complete && image.naturalWidth > 0,
      seen: box.width > 0 && box.height > 0,
      figure: image.closest("article") !== null,
      // The theme shows one of a pair, the other in the other colour scheme.
      paired: image.closest(".only-light, .only-dark") !== null,
    });
  }

  const math = [...document.querySelectorAll(".math")];
  const isRendered = (element) => element.querySelector("mjx-container") !== null;
  const deadline = Date.now() + 60000;
  while (!math.every(isRendered) && Date.now() < deadline) await new Promise((done) => setTimeout(done, 50));

  // Dollars and backslashes in prose are formulas that nothing rendered; in code they are code.
  const raw = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const text = texts.currentNode;
    if (text.parentElement.closest("pre, code, script, style, textarea, mjx-container")) continue;
    const found = text.data.match(/\$\$|\\\(|\\\[|\$[^$\n]*[\\^_{][^$\n]*\$/);
    if (found) raw.push(text.data.slice(found.index, found.index + 60));
  }

  const root = document.documentElement;
  const clips = (element) => getComputedStyle(element).overflowX !== "visible";
  const clipped = (element) => {
    for (let above = element.parentElement; above && above !== document.body; above = above.parentElement)
      if (clips(above)) return true;
    return false;
  };
  const sticking = [...document.body.querySelectorAll("*")]
    .filter((element) => element.getBoundingClientRect().right > root.clientWidth + 1 && !clipped(element))
    .map((element) => `${name(element)} to ${Math.round(element.getBoundingClientRect().right)}`);

  const links = [...document.querySelectorAll("a[href], link[rel~=icon]")]
    .map((link) => new URL(link.href, location.href))
    .filter((url) => url.protocol === location.protocol && url.host === location.host)
    .map((url) => decodeURIComponent(url.pathname + url.hash));

  return {
    // Sphinx gives its pages a content root; a page without one is not dressed by the theme.
    themed: "content_root" in root.dataset,
    theme: root.dataset.theme ?? null,
    width: { content: root.scrollWidth, window: root.clientWidth, sticking: sticking.slice(0, 5) },
    images,
    math: {
      formulas: math.length,
      unrendered: math.filter((element) => !isRendered(element)).map((element) => element.textContent.slice(0, 60)),
      errors: [...document.querySelectorAll("mjx-merror, [data-mjx-error]")].map(
        (error) => error.getAttribute("data-mjx-error") ?? error.textContent.slice(0, 60),
      ),
      raw,
    },
    links: [...new Set(links)],
    ids: [...document.querySelectorAll("[id], a[name]")].map((element) => element.id || element.name),
  };
};
