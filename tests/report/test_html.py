"""Parts of a page: text from data is escaped."""

from sfedhp.report.html import paragraph


def test_words_in_backticks_become_code_and_everything_is_escaped():
    assert paragraph("run `sfedhp show <DIR>` & look", "hint") == (
        '<p class="hint">run <code>sfedhp show &lt;DIR&gt;</code> &amp; look</p>'
    )
    assert paragraph("one ` alone and <b>") == "<p>one ` alone and &lt;b&gt;</p>"
