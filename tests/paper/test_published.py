from sfedhp.paper.published import TABLES, cells, overview


def test_there_are_seventeen_rows_for_each_dataset_and_setting():
    assert len(cells()) == 102
    for dataset, setting in TABLES.values():
        assert sum((cell.dataset, cell.setting) == (dataset, setting) for cell in cells()) == 17


def test_the_first_table_repeats_the_details():
    assert len(overview()) == 30
    for line in overview():
        same = [
            cell for cell in cells() if cell[:3] == line[:3] and cell.lam == line.lam and cell.gm == line.gm
        ]
        assert len(same) == 1, line
