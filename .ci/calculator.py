"""Adds the HiSparse calculator to the site: `explore` of the bundled trace, without a server."""

import logging
from pathlib import Path
from typing import Any

LOG = logging.getLogger("mkdocs.hooks.calculator")


def on_post_build(config: Any, **_: Any) -> None:
    try:
        import vl_convert  # noqa: F401
    except ImportError:
        LOG.info("no calculator: it needs the extra [report]")
        return
    from tempfile import TemporaryDirectory

    import hisparse_sim as hs
    from hisparse_sim.simulator.views.explore import static_page

    swept = hs.sweep(policies=["lru", "belady"], buffers=[3072, 4096, 6144], per_layer=True)
    with TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.parquet"
        swept.rows.to_parquet(rows)
        page = static_page([rows], "HiSparse calculator")
    Path(config["site_dir"], "hisparse-calculator.html").write_text(page, encoding="utf-8")
