"""The paper's tables and figures: studies, records of runs, and our numbers compared with the paper's.

>>> from sfedhp.paper import FAST, make_page, read_results, read_studies, run_studies
>>> studies = read_studies(names=["table2"])                   # experiment files that come with the package
>>> run_studies(studies, "records", FAST)                      # runs what has no record yet
>>> results = read_results(studies, "records")
>>> results.rows, results.curves, results.claims
>>> make_page(results).write_html("page.html")
"""

from sfedhp.paper.campaign import CampaignProgress, run_studies
from sfedhp.paper.curves import Curve
from sfedhp.paper.jobs import FAST, Effort
from sfedhp.paper.page import Page, make_page
from sfedhp.paper.records import Record, read_records
from sfedhp.paper.results import Results, read_results
from sfedhp.paper.rows import Row
from sfedhp.paper.studies import STUDIES, Study, read_studies, read_study
from sfedhp.paper.verdicts import Claim

__all__ = [
    "FAST",
    "STUDIES",
    "CampaignProgress",
    "Claim",
    "Curve",
    "Effort",
    "Page",
    "Record",
    "Results",
    "Row",
    "Study",
    "make_page",
    "read_records",
    "read_results",
    "read_studies",
    "read_study",
    "run_studies",
]
