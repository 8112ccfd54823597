"""Reports: charts described as data, drawn as SVG and PNG, with tables in HTML and Markdown."""
