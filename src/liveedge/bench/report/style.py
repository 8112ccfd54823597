"""How a report looks: one column on phones, two on tablets, three on desks; print as on light paper."""

from __future__ import annotations

PAGE_CSS = """
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);
 font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans","Liberation Sans",sans-serif;
 font-variant-numeric:tabular-nums;overflow-wrap:break-word}
main{max-width:1360px;margin:0 auto;padding:36px 24px 48px}
header{margin-bottom:20px}
h1{font-size:30px;line-height:1.2;letter-spacing:-.01em;margin:2px 0 8px;overflow-wrap:anywhere}
h2{font-size:20px;line-height:1.3;margin:0 0 8px}
h3{font-size:14px;line-height:1.35;margin:0 0 4px}
header p{margin:2px 0;color:var(--muted);max-width:100ch;overflow-wrap:anywhere}
header .kind{text-transform:uppercase;letter-spacing:.08em;font-size:12px;font-weight:600}
a{color:var(--link)}
a:focus-visible,pre:focus-visible,.scroll:focus-visible{outline:2px solid var(--link);outline-offset:2px}
.verdict{border:1px solid var(--grid);border-left:6px solid var(--axis);border-radius:4px;
 background:var(--raised);padding:12px 18px;margin:0 0 20px}
.verdict.good{border-left-color:var(--good)}.verdict.bad{border-left-color:var(--bad)}
.verdict.doubt{border-left-color:var(--doubt)}
.verdict .word{margin:0;font-size:18px;font-weight:650}
.verdict.good .word span{color:var(--good)}.verdict.bad .word span{color:var(--bad)}
.verdict.doubt .word span{color:var(--doubt)}
.verdict ul{margin:4px 0 0;padding-left:20px}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(172px,1fr));gap:16px 28px;margin:0 0 20px}
.facts div{border-top:2px solid var(--ink);padding-top:6px}
.facts dt{font-size:13px;color:var(--muted)}
.facts dd{margin:0;font-size:24px;line-height:1.3;font-weight:650;letter-spacing:-.01em}
.facts dd.detail{font-size:13px;line-height:1.4;font-weight:400;letter-spacing:0;color:var(--muted)}
.warnings{border-left:3px solid var(--doubt);padding:0 0 0 14px;margin:0 0 24px}
.warnings h2{font-size:14px;color:var(--doubt);margin:0}
.warnings ul{margin:2px 0 0;padding-left:18px;font-size:14px}
nav{border-top:1px solid var(--grid);border-bottom:1px solid var(--grid);margin:24px 0 8px;padding:8px 0}
nav ul{list-style:none;display:flex;flex-wrap:wrap;gap:4px 20px;margin:0;padding:0;font-size:14px}
section[id]{padding-top:30px}
.text{max-width:96ch;margin:0 0 10px;color:var(--muted);font-size:14px}
.grid{display:grid;grid-template-columns:repeat(3,minmax(0,1fr));gap:0 34px;margin-top:14px;align-items:start}
figure{margin:0 0 26px;min-width:0}
figure.wide,.t3{grid-column:1/-1}
.t2{grid-column:span 2}
svg{display:block;max-width:100%;height:auto;font-family:inherit}
figure>svg{width:100%}
.on-narrow{display:none}
.key{list-style:none;display:flex;flex-wrap:wrap;gap:2px 14px;margin:0 0 6px;padding:0;font-size:12.5px;line-height:1.5}
.key li{display:flex;align-items:center;gap:6px;overflow-wrap:anywhere}
.key svg{flex:none}
figcaption,.note{font-size:12.5px;line-height:1.45;color:var(--muted);margin:4px 0 0}
.table{min-width:0;margin:0 0 26px}
.scroll{overflow-x:auto}
table{border-collapse:separate;border-spacing:0;width:100%;font-size:13px;line-height:1.4}
tbody th{position:sticky;left:0;background:var(--paper)}
th,td{padding:4px 10px;text-align:right;vertical-align:top;white-space:nowrap}
th:first-child,td:first-child{padding-left:2px}
th:last-child,td:last-child{padding-right:2px}
thead th{border-bottom:1px solid var(--axis);color:var(--muted);font-weight:600;vertical-align:bottom;white-space:normal}
tbody th{font-weight:500}
tbody th,tbody td{border-bottom:1px solid var(--grid)}
.name{text-align:left}
tbody .name{white-space:normal}
td.good{color:var(--good)}td.bad,th.bad{color:var(--bad)}td.doubt{color:var(--doubt)}td.muted{color:var(--muted)}
.listing{margin-top:20px}
pre{background:var(--raised);border:1px solid var(--grid);border-radius:4px;padding:10px 14px;margin:4px 0 0;
 font:12.5px/1.5 ui-monospace,"SF Mono",Menlo,Consolas,"DejaVu Sans Mono",monospace;
 max-height:32em;overflow:auto;white-space:pre-wrap;overflow-wrap:anywhere}
footer{margin-top:40px;border-top:1px solid var(--grid);color:var(--muted);font-size:13px}
@media (max-width:1180px){.grid{grid-template-columns:repeat(2,minmax(0,1fr))}.t2{grid-column:1/-1}}
@media screen and (max-width:760px){
 main{padding:20px 16px 32px}h1{font-size:24px}
 .grid{grid-template-columns:minmax(0,1fr)}
 .facts{grid-template-columns:repeat(2,minmax(0,1fr));gap:14px 20px}.facts dd{font-size:20px}
 thead th{white-space:nowrap}
 .on-wide{display:none}.on-narrow{display:block}}
@media print{
 body{font-size:10pt}.facts{grid-template-columns:repeat(5,minmax(0,1fr));gap:10px}.facts dd{font-size:14pt}main{max-width:none;padding:0}nav{display:none}
 .grid{grid-template-columns:repeat(2,minmax(0,1fr));gap:0 20px}.t2{grid-column:1/-1}
 figure,.verdict,tr{break-inside:avoid}h2,h3{break-after:avoid}
 .scroll{overflow:visible}table{font-size:7pt}th,td{padding:2px 4px;white-space:normal}pre{max-height:none}
 *{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
"""
