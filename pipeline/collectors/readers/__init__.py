"""One module per kind of source; :mod:`pipeline.collectors.registry` lists them."""
