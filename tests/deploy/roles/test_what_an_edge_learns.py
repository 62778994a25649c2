"""All that an edge receives and holds in secure rounds, and what can be made of it: sums, and no θ_ij.

The test plays the edge's part with everything that reached it, also with what one of its clients knows. That
what is left of a masked upload says nothing is shown by removing the last mask too, which gives the upload.
"""

from __future__ import annotations

import gc
import itertools
from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from sfedhp.deploy.messaging.protocol import Kind, decode_message
from sfedhp.deploy.roles.secure_replies import SecureReplies
from sfedhp.privacy import masks
from sfedhp.privacy.ring import MaskedFormat, SecureOptions
from sfedhp.privacy.secure_member import SecureMember, pair_context
from sfedhp.privacy.secure_messages import decode_offer, view_of
from sfedhp.privacy.shares import SHARE_BYTES, combine
from sfedhp.wire import encode
from tests.support.deploy_memory import QUICK, Federation, experiment

CLIENTS, LOST = 5, (1, 1)  # in this cloud and edge round, the upload of the last client comes too late


class Watched:
    """A federation of one edge with all that reaches the edge, and beside it the truth."""

    def __init__(self, folder):
        self.to_edge = []  # everything that arrives
        self.late = {}  # uploads that the edge had given up, by clock
        self.members: defaultdict[Any, dict[int, SecureMember]] = defaultdict(
            dict
        )  # the clients' secrets, by clock and seat
        self.uploads: defaultdict[Any, dict[int, Any]] = defaultdict(
            dict
        )  # what they would send without masks
        self.models = {}  # the part with the model that clients were sent, by clock
        what = experiment(
            "hierfavg",
            secure=True,
            edges=1,
            clients_per_edge=CLIENTS,
            rounds=2,
            algorithm={"edge_rounds": 2, "local_steps": 3},
        )
        self.federation = Federation(folder, what, replace(QUICK, client_seconds=2.0), self.change)

    def change(self, box, to, data):
        if box.federation == "edge-0" and to == "server":
            envelope = decode_message(data)
            clock = (int(envelope.clock.cloud_round), envelope.clock.edge_round)
            if envelope.kind is Kind.REPLY and clock == LOST and box.name == f"client-0-{CLIENTS - 1}":
                self.late[clock] = envelope
                return []
            self.to_edge.append((envelope, data))
        return [data]


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    found = Watched(tmp_path_factory.mktemp("federation"))
    masked, kept = SecureReplies.masked, found

    def noted(self, request, reply, received):
        clock = (int(request.clock.cloud_round), request.clock.edge_round)
        parts = masked(self, request, reply, received)
        kept.uploads[clock][self._site.seat] = (reply.upload.clone(), received.clone(), reply.weight)
        kept.members[clock][self._site.seat] = self._member
        kept.models[clock] = request.parts[0]
        return parts

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SecureReplies, "masked", noted)
        patch.setattr("sfedhp.deploy.roles.uplink._GRACE", 0.0)
        found.federation.start()
        found.federation.finish(120.0)
    return found


def clocks(watched):
    return sorted(watched.uploads)


def form_of(watched):
    upload, received, _ = watched.uploads[0, 0][0]
    return MaskedFormat(SecureOptions(10.0, 1e-6), CLIENTS, len(received), len(upload) - len(received))


def plain_words(watched, clock, seat):
    """The words of a client's upload, which only the client may know."""
    total = sum(weight for _, _, weight in watched.uploads[clock].values())
    upload, received, weight = watched.uploads[clock][seat]
    size = len(received)
    return form_of(watched).encode(upload[:size] - received, upload[size:], weight / total)


def masked_words(watched, clock, seat):
    """The masked upload as it travelled, also one that came too late."""
    late = watched.late.get(clock)
    if late is not None and late.member == seat:
        part = late.parts[0]
    else:
        part = next(it.parts[0] for it in replies(watched, Kind.REPLY, clock) if it.member == seat)
    return form_of(watched).unpack(part[8:-4])


def replies(watched, kind, clock):
    return [
        it
        for it, _ in watched.to_edge
        if it.kind is kind and (it.clock.cloud_round, it.clock.edge_round) == clock
    ]


def resemblance(watched, words, clock, seat):
    """How much words are like the upload of a client: the correlation, in standard errors of noise."""
    ring, _ = form_of(watched).rings
    found = ring.centered(ring.unpack(ring.pack(words[0]))).double()
    truth = torch.from_numpy(plain_words(watched, clock, seat)[0].view(np.int64)).double()
    moved = truth != 0
    both = torch.stack([found[moved], truth[moved]])
    return float(torch.corrcoef(both)[0, 1]) * int(moved.sum()) ** 0.5


def uniformity(watched, words):
    """How uneven the top bytes of words are, in standard errors of a chi-square of noise."""
    ring, _ = form_of(watched).rings
    top = np.frombuffer(ring.pack(words[0]), np.uint8).reshape(-1, ring.width)[:, -1]
    counts, expected = np.bincount(top, minlength=256), len(top) / 256
    return (((counts - expected) ** 2 / expected).sum() - 255) / np.sqrt(2 * 255)


def told_shares(watched, clock):
    """The shares that were told the edge: {owner: {teller's place: share}}, and who had answered."""
    found: defaultdict[int, dict[int, bytes]] = defaultdict(dict)
    for envelope in replies(watched, Kind.SHARES, clock):
        for owner in range(CLIENTS):
            first = 8 + SHARE_BYTES * owner
            found[owner][envelope.member + 1] = envelope.parts[0][first : first + SHARE_BYTES]
    return found


def without_known_masks(watched, clock, seat, colluding=()):
    """A masked upload less every mask that the edge can make, with the help of some of its clients."""
    words, form = masked_words(watched, clock, seat), form_of(watched)
    members, answered = watched.members[clock], {it.member for it in replies(watched, Kind.REPLY, clock)}
    told, threshold = told_shares(watched, clock), CLIENTS // 2 + 1
    context, weights = members[seat]._context, [weight for *_, weight in watched.uploads[clock].values()]
    view = view_of(watched.models[clock], range(CLIENTS), sum(weights))
    offers = {
        it.member: decode_offer(it.parts[0], it.parts[0][:8], [x for x in range(CLIENTS) if x != it.member])
        for it in replies(watched, Kind.OFFERS, clock)
    }
    pair_keys = {owner: members[owner]._pair for owner in colluding}
    for owner, shares in told.items():
        secret = combine(dict(list(shares.items())[:threshold]))
        assert secret is not None
        if owner in answered and owner == seat:
            assert masks.commitment(secret) == offers[owner].commitment
            masks.add(words, masks.mask(secret, form), -1)
        if owner not in answered:
            pair_keys[owner] = X25519PrivateKey.from_private_bytes(secret)
            assert masks.public_bytes(pair_keys[owner]) == offers[owner].public
    # A mask is known to who has the key of one of its two ends.
    known = set(range(CLIENTS)) if seat in pair_keys else set(pair_keys)
    for other in known - {seat}:
        end, far = (seat, other) if seat in pair_keys else (other, seat)
        seed = masks.derive(pair_keys[end], offers[far].public, pair_context(context, view, seat, other))
        masks.add(words, masks.mask(seed, form), -1 if seat < other else 1)
    return words


def test_the_uploads_were_real_and_their_sum_is_what_the_edge_learns(watched):
    assert len(clocks(watched)) == 4
    assert all(len(watched.uploads[clock]) == CLIENTS for clock in clocks(watched))
    assert [row["missing"] for row in watched.federation.rows()] == [{}, {f"client-0-{CLIENTS - 1}": 1}]
    for clock in clocks(watched):
        for seat in range(CLIENTS):
            plain = plain_words(watched, clock, seat)
            assert resemblance(watched, plain, clock, seat) > 30, "the test would see an upload"
            assert uniformity(watched, plain) > 30


@pytest.mark.parametrize("colluding", [(), (0,), (3,), (1, 2)])
def test_no_upload_can_be_recovered_from_all_that_the_edge_is_sent(watched, colluding):
    """Not even where one or two of its clients tell it all secrets: honest ones still share masks."""
    for clock in clocks(watched):
        for seat in set(range(CLIENTS)) - set(colluding):
            left = without_known_masks(watched, clock, seat, colluding)
            for words in (masked_words(watched, clock, seat), left):
                assert abs(resemblance(watched, words, clock, seat)) < 5, (clock, seat)
                assert abs(uniformity(watched, words)) < 6, (clock, seat)


def test_the_mask_of_one_other_honest_client_is_all_that_hides_an_upload(watched):
    """The test above removes the right masks: if all masks are removed, the upload remains."""
    for seat in range(CLIENTS):
        everybody = tuple(other for other in range(CLIENTS) if other != seat)
        left = without_known_masks(watched, (0, 0), seat, everybody)
        form = form_of(watched)
        assert form.pack(left) == form.pack(plain_words(watched, (0, 0), seat))


def test_a_late_upload_of_a_lost_client_stays_hidden_by_its_own_mask(watched):
    seat, form = CLIENTS - 1, form_of(watched)
    left = without_known_masks(watched, LOST, seat, (0, 1, 2, 3))
    assert abs(resemblance(watched, left, LOST, seat)) < 5
    masks.add(left, masks.mask(watched.members[LOST][seat]._own, form), -1)
    assert form.pack(left) == form.pack(plain_words(watched, LOST, seat))


def test_never_both_secrets_of_a_client_are_revealed_and_one_client_holds_too_few_shares(watched):
    for clock in clocks(watched):
        answered = {it.member for it in replies(watched, Kind.REPLY, clock)}
        told = told_shares(watched, clock)
        for owner, member in watched.members[clock].items():
            pair, own = member._shares
            for place, share in told[owner].items():
                assert share == (own if owner in answered else pair)[place]
                assert share != (pair if owner in answered else own)[place]
            hidden = pair if owner in answered else own
            for place in hidden:  # what one client holds is one share of three
                assert combine({place: hidden[place]}) != (
                    member._pair.private_bytes_raw() if owner in answered else member._own
                )


def test_what_the_edge_holds_and_writes_is_no_clients_model(watched):
    """Every tensor, array and text that its process can reach, and every file of its folder."""
    role = watched.federation.roles["edge-0/edge"]
    uploads = [
        (clock, seat, upload, received)
        for clock in clocks(watched)
        for seat, (upload, received, _) in watched.uploads[clock].items()
    ]
    forms = [
        bytes(form)
        for clock, seat, upload, received in uploads
        for form in (
            upload.numpy().tobytes(),
            upload.float().numpy().tobytes(),
            encode(upload[: len(received)]),
            form_of(watched).pack(plain_words(watched, clock, seat)),
            (upload - received).numpy().tobytes(),
        )
    ]
    texts = [data for _, data in watched.to_edge]
    texts += [path.read_bytes() for path in watched.federation.folder.glob("edge-0/**/*") if path.is_file()]
    tensors, held = reachable(role)
    texts += held
    assert len(texts) > 50
    for form in forms:
        middle = form[len(form) // 2 : len(form) // 2 + 48]
        assert middle.count(0) < 40, "it would be found anywhere"
        assert not any(middle in text for text in texts)
    assert tensors
    for tensor, (_, _, upload, received) in itertools.product(tensors, uploads):
        if tensor.numel() % len(received) == 0:
            for row in tensor.reshape(-1, len(received)):
                assert (row.double() - upload).abs().max() > 1e-7
                assert (row.double() - (upload - received)).abs().max() > 1e-7


def reachable(role):
    """The tensors and the bytes that a role can reach, but for its transport's other ends."""
    seen, tensors, texts, left = set(), [], [], [role]
    while left:
        each = left.pop()
        if (
            id(each) in seen
            or isinstance(each, type | type(gc))
            or (callable(each) and not hasattr(each, "__self__"))
        ):
            continue
        if type(each).__name__ in ("Exchange", "Federation", "Thread"):
            continue
        seen.add(id(each))
        if isinstance(each, torch.Tensor):
            tensors.append(each.detach())
        elif isinstance(each, np.ndarray):
            texts.append(each.tobytes())
        elif isinstance(each, bytes):
            texts.append(each)
        elif not isinstance(each, str | int | float | bool | None):
            left += gc.get_referents(each)
    return tensors, texts
