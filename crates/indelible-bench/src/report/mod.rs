//! What readers see of a run: a summary for the terminal, a page for the browser.
