// docutils gives the entries of a bibliography a role that is out of use, so that their list is one without items.
document.addEventListener("DOMContentLoaded", () => {
  for (const entry of document.querySelectorAll(".citation-list > .citation")) entry.setAttribute("role", "listitem");
});
