// A game in a page says how tall it is (scripts/site): its frame gets that height.
window.addEventListener("message", (event) => {
  for (const frame of document.querySelectorAll(".live iframe")) {
    const height = Number(event.data && event.data.shoalHeight);
    if (frame.contentWindow === event.source && height > 0) frame.style.height = `${Math.min(height + 2, 900)}px`;
  }
});
