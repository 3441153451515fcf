// The page of a posterior: all it shows is in its data.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const page = (Aquamam.page = new Aquamam.Explorer(data));
  Aquamam.$("input").src = data.image;
  Aquamam.$("footer").textContent = data.footer;
  page.setObject(data.object);
  page.show(data.answer, data.range);
  page.ready = page.pose?.ready || Promise.resolve();
})();
