"""The style sheet of the survey: light and dark, from 320 px to a wide screen."""

from typing import Final

STYLE: Final = """
:root {
  --paper: #faf9f6; --card: #ffffff; --ink: #26282b; --quiet: #62666b; --rule: #e2dfd8;
  --bar: #3f7f9f; --bar-hover: #1f5875; --link: #1d5f80;
  --calm-ink: #2f6145; --calm: #e4efe7; --changed-ink: #8a4a0b; --changed: #f8e9d6;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #17191c; --card: #1f2226; --ink: #e6e4df; --quiet: #a0a4a9; --rule: #34383d;
    --bar: #6ba6c1; --bar-hover: #a3cfe2; --link: #8cc4dd;
    --calm-ink: #a9d6b8; --calm: #24382c; --changed-ink: #f0bf85; --changed: #43311c;
  }
}
* { box-sizing: border-box; }
html { color-scheme: light dark; -webkit-text-size-adjust: 100%; }
body {
  margin: 0 auto; max-width: 1136px; padding: 40px 32px 96px;
  background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
  font-variant-numeric: tabular-nums; overflow-wrap: anywhere;
}
h1, h2, h3, p, dl, dd, ul, figure { margin: 0; padding: 0; }
h1 { font-size: 30px; line-height: 1.2; font-weight: 650; letter-spacing: -0.01em; }
h2 { font-size: 22px; line-height: 1.25; font-weight: 650; margin-bottom: 12px; }
h3 { font-size: 17px; line-height: 1.4; font-weight: 650; }
p { max-width: 68ch; }
a { color: var(--link); text-underline-offset: 3px; }
a:focus-visible, summary:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
code { font: 0.9em/1.4 ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
.fingerprint, .more, .note, .range { color: var(--quiet); }
.fingerprint { margin-top: 4px; font-size: 14px; }
.more { font-size: 14px; margin-top: 8px; }

.facts { display: grid; grid-template-columns: repeat(6, auto); gap: 16px 32px; margin-top: 28px;
  padding: 20px 24px; background: var(--card); border: 1px solid var(--rule); border-radius: 10px; }
.facts dt { color: var(--quiet); font-size: 14px; }
.facts dd { font-size: 24px; line-height: 1.3; font-weight: 600; }
.facts .text dd { font-size: 16px; line-height: 1.3; padding-top: 5px; }
nav { display: flex; flex-wrap: wrap; gap: 4px 24px; margin: 20px 0 0; }
nav a { padding: 4px 0; }

section { margin-top: 56px; }
.findings { margin-top: 32px; padding: 20px 24px; background: var(--card);
  border: 1px solid var(--rule); border-radius: 10px; }
.findings h2 { font-size: 17px; margin-bottom: 8px; }
.findings ul { padding-left: 20px; }
.findings li { margin: 4px 0; }

.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(312px, 100%), 1fr));
  gap: 32px 40px; margin-top: 24px; }
.chart { min-width: 0; }
section > .chart { margin-top: 24px; }
figcaption b { font-weight: 600; display: block; }
.range { font-size: 14px; }
svg { display: block; overflow: visible; }
.plot { width: calc(100% - 54px); margin: 10px 10px 4px 44px; }
.plot text { fill: var(--quiet); font-size: 12px; }
.plot .y { text-anchor: end; }
.plot .x { text-anchor: middle; }
.plot .end { text-anchor: end; }
.plot rect, .share rect { fill: var(--bar); shape-rendering: crispEdges; }
.plot rect:hover { fill: var(--bar-hover); }
.grid { stroke: var(--rule); }
.axis { stroke: var(--quiet); }

table { border-collapse: collapse; width: 100%; font-size: 14px; }
caption { text-align: left; font-weight: 600; font-size: 16px; padding-bottom: 6px; }
th, td { text-align: left; vertical-align: top; padding: 5px 16px 5px 0; font-weight: 400;
  border-bottom: 1px solid var(--rule); }
th:last-child, td:last-child { padding-right: 0; }
thead th { color: var(--quiet); font-size: 13px; vertical-align: bottom; }
.n { text-align: right; white-space: nowrap; overflow-wrap: normal; }
.share { width: 100%; min-width: 48px; margin-top: 6px; }
.chart th { white-space: nowrap; }
.classes th:first-child { width: 3.5em; color: var(--quiet); }
.classes td:nth-child(5) { width: 32%; }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: 40px; margin-top: 32px; }
.pair > table, section > table { align-self: start; margin-top: 16px; }
.pair td:nth-child(5) { width: 20%; }
.charts td:last-child { width: 40%; }
.charts details td:last-child { width: auto; }
.files { table-layout: fixed; }
.plain caption { position: absolute; width: 1px; height: 1px; padding: 0; overflow: hidden;
  clip-path: inset(50%); white-space: nowrap; }
.names { margin-top: 20px; max-width: none; }
.names b { font-weight: 600; }
details { margin-left: 44px; font-size: 14px; }
summary { color: var(--quiet); cursor: pointer; width: max-content; }
details table { margin-top: 8px; }

.kind { display: grid; grid-template-columns: 300px minmax(0, 1fr); gap: 12px 40px;
  margin-top: 24px; padding-top: 20px; border-top: 1px solid var(--rule); }
.kind p { font-size: 15px; }
.kind .pictures { grid-template-columns: repeat(6, minmax(0, 1fr)); gap: 12px; }
.kind .pictures, .kind table { margin-top: 4px; }
.tags { margin: 6px 0 8px; }
.tags code { color: var(--quiet); margin-left: 4px; }
.kind .count, .count { font-size: 14px; color: var(--quiet); margin: 2px 0 4px; }
.count b { color: var(--ink); }
.tag { display: inline-block; padding: 1px 8px; border-radius: 999px; font-size: 12.5px;
  font-weight: 500; line-height: 1.5; white-space: nowrap; vertical-align: 1px; }
.calm { background: var(--calm); color: var(--calm-ink); }
.changed { background: var(--changed); color: var(--changed-ink); }
.pictures { display: grid; grid-template-columns: repeat(auto-fill, minmax(128px, 1fr));
  gap: 16px; margin-top: 16px; }
.pictures figure { max-width: 160px; }
.pictures figcaption { font-size: 13px; line-height: 1.35; margin-top: 6px; }
.pictures .line { display: block; }
.pictures .name { color: var(--quiet); display: -webkit-box; -webkit-box-orient: vertical;
  -webkit-line-clamp: 4; overflow: hidden; }
.picture { display: grid; place-items: center; width: 100%; max-width: 130px; aspect-ratio: 1;
  background: var(--card); border: 1px solid var(--rule); border-radius: 6px; overflow: hidden;
  color: var(--quiet); font-size: 13px; }
.picture img { max-width: 100%; max-height: 100%; display: block; }
.groups { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(440px, 100%), 1fr));
  gap: 24px 40px; margin-top: 24px; }
.group { display: grid; grid-template-columns: 128px minmax(0, 1fr); gap: 16px; }
.group .count { margin-top: 0; }
.group ul { list-style: none; font-size: 14px; }
.group li { padding: 3px 0; border-bottom: 1px solid var(--rule); }
.options { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 6px 24px; }
.options dt { color: var(--quiet); }

@media (max-width: 760px) {
  body { padding: 24px 16px 64px; }
  h1 { font-size: 26px; }
  section { margin-top: 44px; }
  .facts { grid-template-columns: 1fr 1fr; padding: 16px; gap: 12px 16px; }
  .facts dd { font-size: 20px; }
  .findings { padding: 16px; }
  .pair { grid-template-columns: minmax(0, 1fr); gap: 28px; }
  .kind { grid-template-columns: minmax(0, 1fr); }
  .pictures, .kind .pictures { grid-template-columns: repeat(auto-fill, minmax(100px, 1fr)); }
  .group { grid-template-columns: 96px minmax(0, 1fr); }
  .classes th, .classes td, .chart th, .chart td { padding-right: 10px; }
  .options { grid-template-columns: minmax(0, 1fr); gap: 0; }
  .options dd { margin-bottom: 10px; }
}
@media (max-width: 560px) {
  .classes th:nth-child(4), .classes td:nth-child(4) { display: none; }
  .classes td:nth-child(5), .pair td:nth-child(5) { width: 24%; }
  #sizes .pictures { grid-template-columns: 1fr 1fr; }
}
"""
