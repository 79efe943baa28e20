//! The policy against a naive reference: two `VecDeque`s, ghosts as a list, weights summed
//! anew.
//!
//! After every operation: each folio is in the place the reference says and in the same order, each
//! exactly once, the links agree in both directions, weights are exact, and each ghost's age is
//! decided the same way. Answers come late, to folios that were removed, replaced or inserted anew
//! meanwhile.

use std::collections::{HashMap, VecDeque};

use pinfold_policy::{
    Answer, Id, NONE, Place, Queue, Residents, S3Fifo, S3FifoOptions, Shadow, Sweep, SweepCounts,
    Table, USES_MAX, Weight,
};
use proptest::prelude::*;

const IDS: u32 = 48;
/// Small, so that the cap on reprieves is met often.
const REPRIEVES_MAX: u32 = 4;

#[derive(Clone, Debug)]
enum Op {
    Insert {
        id: Id,
        order: u32,
    },
    Touch(Id),
    Remove(Id),
    /// Asks for a victim; `None`: the answer comes later.
    Victim(Option<Answer>),
    LateAnswer(usize, Answer),
    NewSweep(u32),
    Split(Id, bool),
    Replace(Id, Id),
}

fn answers() -> impl Strategy<Value = Answer> {
    prop_oneof![Just(Answer::Evicted), Just(Answer::Busy), Just(Answer::Pinned)]
}

fn ops() -> impl Strategy<Value = Op> {
    let insert = (0..IDS, prop_oneof![3 => Just(0_u32), 1 => 0..=9_u32])
        .prop_map(|(id, order)| Op::Insert { id, order });
    prop_oneof![
        8 => insert,
        8 => (0..IDS).prop_map(Op::Touch),
        1 => (0..IDS).prop_map(Op::Remove),
        8 => prop_oneof![3 => answers().prop_map(Some), 1 => Just(None)].prop_map(Op::Victim),
        2 => (any::<usize>(), answers()).prop_map(|(n, a)| Op::LateAnswer(n, a)),
        1 => prop_oneof![0..8_u32, 100..200_u32].prop_map(Op::NewSweep),
        1 => (0..IDS, any::<bool>()).prop_map(|(id, used)| Op::Split(id, used)),
        1 => (0..IDS, 0..IDS).prop_map(|(old, new)| Op::Replace(old, new)),
    ]
}

/// The reference.
struct Model {
    capacity: u64,
    small: VecDeque<Id>,
    main: VecDeque<Id>,
    offered: Vec<(Id, Queue)>,
    uses: HashMap<Id, u8>,
    pages: HashMap<Id, u32>,
    /// Pages of each ghost that was ever left, in order.
    ghosts: Vec<u32>,
    counts: SweepCounts,
    effort_max: u32,
    /// By queue: how many refused this sweep in a row and went to its newest end.
    refused: [usize; 2],
}

impl Model {
    fn new(capacity: u64) -> Self {
        Self {
            capacity,
            small: VecDeque::new(),
            main: VecDeque::new(),
            offered: Vec::new(),
            uses: HashMap::new(),
            pages: HashMap::new(),
            ghosts: Vec::new(),
            counts: SweepCounts::default(),
            effort_max: 100,
            refused: [0; 2],
        }
    }

    fn queue(&mut self, queue: Queue) -> &mut VecDeque<Id> {
        match queue {
            Queue::Small => &mut self.small,
            Queue::Main => &mut self.main,
        }
    }

    fn weigh<'a>(&self, ids: impl IntoIterator<Item = &'a Id>) -> Weight {
        let pages: Vec<u32> = ids.into_iter().map(|id| self.pages[id]).collect();
        Weight { folios: pages.len() as u32, pages: pages.iter().map(|&p| u64::from(p)).sum() }
    }

    fn place(&self, id: Id) -> Place {
        if self.small.contains(&id) {
            Place::Queued(Queue::Small)
        } else if self.main.contains(&id) {
            Place::Queued(Queue::Main)
        } else {
            let offer = self.offered.iter().find(|&&(offered, _)| offered == id);
            offer.map_or(Place::Out, |&(_, queue)| Place::Offered(queue))
        }
    }

    fn is_recent(&self, ghost: usize) -> bool {
        // Ages are counted in units of two pages where the capacity is above 2^10 (`shadow.rs`).
        let unit = if self.capacity > 1 << 10 { 2 } else { 1 };
        let pages = |ghosts: &[u32]| ghosts.iter().map(|&p| u64::from(p)).sum::<u64>();
        let (left, now) = (pages(&self.ghosts[..ghost]) / unit, pages(&self.ghosts) / unit);
        (now - left) * unit <= self.capacity * 90 / 100
    }

    fn insert(&mut self, id: Id, ghost: Option<usize>) {
        let recent = ghost.is_some_and(|ghost| self.is_recent(ghost));
        let lacks = self.weigh(&self.small).pages >= (self.capacity / 10).max(1)
            && self.weigh(&self.main).pages < self.capacity * 75 / 100;
        let small = !recent && !lacks;
        let queue = if small { Queue::Small } else { Queue::Main };
        self.uses.insert(id, 0);
        self.queue(queue).push_back(id);
    }

    fn forget(&mut self, id: Id) -> Option<Queue> {
        let place = self.place(id);
        for queue in Queue::ALL {
            self.queue(queue).retain(|&other| other != id);
        }
        self.offered.retain(|&(other, _)| other != id);
        match place {
            Place::Out => None,
            Place::Queued(queue) | Place::Offered(queue) => Some(queue),
        }
    }

    fn pick(&self) -> Option<Queue> {
        let share = (self.capacity / 10).max(1);
        let [small_gives, main_gives] = [(Queue::Small, &self.small), (Queue::Main, &self.main)]
            .map(|(queue, list)| self.refused[queue as usize] < list.len());
        let all = [
            (Queue::Small, small_gives && self.weigh(&self.small).pages >= share),
            (Queue::Main, main_gives),
            (Queue::Small, small_gives),
        ];
        all.into_iter().find(|&(_, gives)| gives).map(|(queue, _)| queue)
    }

    fn spare(&mut self, queue: Queue, id: Id) -> bool {
        let main_refused =
            !self.main.is_empty() && self.refused[Queue::Main as usize] >= self.main.len();
        let in_vain = queue == Queue::Small && main_refused;
        !in_vain && self.spares(queue, id)
    }

    fn spares(&mut self, queue: Queue, id: Id) -> bool {
        let uses = self.uses[&id];
        let left = match queue {
            Queue::Small if uses >= 2 => 0,
            Queue::Main if uses >= 1 => uses - 1,
            _ => return false,
        };
        self.uses.insert(id, left);
        true
    }

    fn next_victim(&mut self) -> Option<Id> {
        let mut spared = 0;
        loop {
            let queue = self.pick()?;
            if self.counts.examined == self.effort_max {
                return None;
            }
            self.counts.examined += 1;
            let id = self.queue(queue).pop_front().expect("pick took an empty queue");
            if spared == REPRIEVES_MAX || !self.spare(queue, id) {
                self.offered.push((id, queue));
                return Some(id);
            }
            self.main.push_back(id);
            spared += 1;
            self.refused[Queue::Main as usize] = 0;
        }
    }

    /// True if a ghost is left.
    fn answer(&mut self, id: Id, answer: Answer) -> bool {
        let pages = self.pages[&id];
        let offer = self.offered.iter().find(|&&(offered, _)| offered == id).copied();
        if answer == Answer::Evicted {
            self.counts.evicted += 1;
            self.counts.evicted_pages += u64::from(pages);
            let leaves = self.forget(id).is_some();
            if leaves {
                self.ghosts.push(pages);
            }
            return leaves;
        }
        if let Some((_, from)) = offer {
            let queue = if answer == Answer::Pinned { Queue::Main } else { from };
            self.forget(id);
            self.queue(queue).push_back(id);
            self.refused[queue as usize] += 1;
        }
        false
    }
}

/// The policy, its table, and the reference, fed the same.
struct Pair {
    policy: S3Fifo,
    table: Table,
    sweep: Sweep,
    model: Model,
    /// What was left of each evicted id: the policy's words, and the reference's.
    left: HashMap<Id, (Shadow, usize)>,
    unanswered: Vec<Id>,
}

impl Pair {
    fn new(capacity: u64) -> Self {
        let options = S3FifoOptions { reprieves_max: REPRIEVES_MAX, ..S3FifoOptions::default() };
        Self {
            policy: S3Fifo::with_options(capacity, options),
            table: Table::new(IDS as usize),
            sweep: Sweep::new(100),
            model: Model::new(capacity),
            left: HashMap::new(),
            unanswered: Vec::new(),
        }
    }

    fn is_out(&self, id: Id) -> bool {
        self.table.place(id) == Place::Out
    }

    fn answer(&mut self, id: Id, answer: Answer) {
        if answer == Answer::Evicted && self.is_out(id) {
            return; // No caller can hold a free folio frozen.
        }
        let shadow = self.policy.answer(&mut self.table, &mut self.sweep, id, answer);
        let leaves = self.model.answer(id, answer);
        assert_eq!(shadow.is_some(), leaves);
        if let Some(shadow) = shadow {
            self.left.insert(id, (shadow, self.model.ghosts.len() - 1));
        }
    }

    fn victim(&mut self, answer: Option<Answer>) {
        let got = self.policy.next_victim(&mut self.table, &mut self.sweep);
        assert_eq!(got, self.model.next_victim(), "another victim");
        match (got, answer) {
            (Some(id), Some(answer)) => self.answer(id, answer),
            (Some(id), None) => self.unanswered.push(id),
            (None, _) => {}
        }
    }

    /// The new part has no uses, or as many as the folio had.
    fn split(&mut self, head: Id, used: bool) {
        let before = self.table.pages(head);
        let Some(free) = (0..IDS).find(|&id| id != head && self.is_out(id)) else { return };
        if before == 1 || self.is_out(head) {
            return;
        }
        let uses = if used { self.table.uses(head) } else { 0 };
        self.table.set_uses(free, uses);
        self.model.uses.insert(free, uses);
        for id in [head, free] {
            self.table.set_pages(id, before / 2);
            self.model.pages.insert(id, before / 2);
        }
        self.policy.split(&mut self.table, head, before, &[free]);
        match self.model.place(head) {
            Place::Queued(queue) => {
                let list = self.model.queue(queue);
                let at = list.iter().position(|&id| id == head).expect("it is there");
                list.insert(at + 1, free);
            }
            Place::Offered(queue) => {
                self.model.queue(queue).push_back(free);
                for id in [head, free] {
                    if self.model.spares(queue, id) {
                        self.model.forget(id);
                        self.model.main.push_back(id);
                    }
                }
            }
            Place::Out => unreachable!("checked above"),
        }
    }

    fn replace(&mut self, old: Id, new: Id) {
        if self.is_out(old) || !self.is_out(new) {
            return;
        }
        let pages = self.table.pages(old);
        self.table.set_pages(new, pages);
        self.model.pages.insert(new, pages);
        self.table.set_uses(new, self.table.uses(old));
        self.policy.replace(&mut self.table, old, new);
        self.model.uses.insert(new, self.model.uses[&old]);
        match self.model.place(old) {
            Place::Queued(queue) => {
                let list = self.model.queue(queue);
                let at = list.iter().position(|&id| id == old).expect("it is there");
                list[at] = new;
            }
            Place::Offered(queue) => {
                self.model.forget(old);
                self.model.queue(queue).push_back(new);
            }
            Place::Out => unreachable!("checked above"),
        }
    }

    fn insert(&mut self, id: Id, order: u32) {
        if !self.is_out(id) {
            return;
        }
        self.table.set_pages(id, 1 << order);
        self.model.pages.insert(id, 1 << order);
        let left = self.left.remove(&id);
        self.policy.insert(&mut self.table, id, left.map(|(shadow, _)| shadow));
        self.model.insert(id, left.map(|(_, ghost)| ghost));
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Insert { id, order } => self.insert(id, order),
            Op::Touch(id) => {
                self.table.touch(id);
                let uses = self.model.uses.entry(id).or_default();
                *uses = (*uses + 1).min(USES_MAX);
            }
            Op::Remove(id) => {
                self.policy.remove(&mut self.table, id);
                self.model.forget(id);
            }
            Op::Victim(answer) => self.victim(answer),
            Op::LateAnswer(n, answer) => {
                if !self.unanswered.is_empty() {
                    let id = self.unanswered.swap_remove(n % self.unanswered.len());
                    self.answer(id, answer);
                }
            }
            Op::NewSweep(effort_max) => {
                self.sweep = Sweep::new(effort_max);
                self.model.counts = SweepCounts::default();
                self.model.effort_max = effort_max;
                self.model.refused = [0; 2];
            }
            Op::Split(id, used) => self.split(id, used),
            Op::Replace(old, new) => self.replace(old, new),
        }
    }

    /// The ids of a queue from the evicting end, read through the links, checked both ways.
    fn walk(&self, queue: Queue) -> Vec<Id> {
        let members = (0..IDS).filter(|&id| self.table.place(id) == Place::Queued(queue));
        let heads: Vec<Id> = members.clone().filter(|&id| self.table.prev(id) == NONE).collect();
        assert!(heads.len() <= 1, "{queue:?} has {} heads", heads.len());
        let mut walked = Vec::new();
        let mut id = heads.first().copied().unwrap_or(NONE);
        while id != NONE {
            assert!(walked.len() < IDS as usize, "{queue:?} goes in a circle");
            assert_eq!(self.table.place(id), Place::Queued(queue), "{id} is in {queue:?} too");
            let next = self.table.next(id);
            assert!(next == NONE || self.table.prev(next) == id, "links disagree at {id}");
            walked.push(id);
            id = next;
        }
        assert_eq!(walked.len(), members.count(), "a folio is not in the queue of its place");
        walked
    }

    fn check(&self) {
        let (model, usage) = (&self.model, self.policy.usage());
        for (queue, list) in [(Queue::Small, &model.small), (Queue::Main, &model.main)] {
            assert_eq!(&VecDeque::from(self.walk(queue)), list, "order of {queue:?}");
            let weight = match queue {
                Queue::Small => usage.small,
                Queue::Main => usage.main,
            };
            assert_eq!(weight, model.weigh(list), "weight of {queue:?}");
        }
        assert_eq!(usage.offered, model.weigh(model.offered.iter().map(|(id, _)| id)));
        assert_eq!(self.sweep.counts(), model.counts);
        assert!(model.counts.examined <= model.effort_max, "more looked at than allowed");
        for id in 0..IDS {
            assert_eq!(self.table.place(id), model.place(id), "place of {id}");
            if !self.is_out(id) {
                assert_eq!(self.table.uses(id), model.uses[&id], "uses of {id}");
            }
        }
        for &(shadow, ghost) in self.left.values() {
            assert_eq!(self.policy.is_recent(shadow), model.is_recent(ghost), "a ghost's age");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn s3fifo_is_its_reference(capacity in 0..2000_u64, ops in prop::collection::vec(ops(), 1..400)) {
        let mut pair = Pair::new(capacity);
        for op in &ops {
            pair.apply(op);
            pair.check();
        }
    }
}

/// The most of a population.
const POPULATION_MAX: usize = 120;

#[derive(Clone, Debug)]
struct Member {
    uses: u8,
    pages: u32,
    answer: Answer,
}

fn population() -> impl Strategy<Value = Vec<Member>> {
    let member = (0..=USES_MAX, 1..20_u32, answers()).prop_map(|(uses, pages, answer)| Member {
        uses,
        pages,
        answer,
    });
    prop::collection::vec(member, 0..POPULATION_MAX)
}

/// Offers batches, as the cache does, until the sweep has nothing more. Each folio that gives way
/// is evicted; each that refuses is met, and no more often than it takes to use up its uses.
fn a_sweep_finds_all_that_gives_way(policy: &mut S3Fifo, members: &[Member], batch_max: usize) {
    let mut table = Table::new(POPULATION_MAX);
    for (id, member) in (0..).zip(members) {
        table.set_pages(id, member.pages);
        policy.insert(&mut table, id, None);
        (0..member.uses).for_each(|_| table.touch(id));
    }
    let mut sweep = Sweep::new(100_000);
    let mut met = vec![0; members.len()];
    // Ends: the sweep's effort is bounded.
    loop {
        let next = |_| policy.next_victim(&mut table, &mut sweep);
        let batch: Vec<Id> = (0..batch_max).map_while(next).collect();
        if batch.is_empty() {
            break;
        }
        for id in batch {
            met[id as usize] += 1;
            policy.answer(&mut table, &mut sweep, id, members[id as usize].answer);
        }
    }
    let count = |answer| members.iter().filter(|member| member.answer == answer).count();
    for (id, member) in members.iter().enumerate() {
        let most = if member.answer == Answer::Evicted { 1 } else { usize::from(USES_MAX) + 2 };
        assert!((1..=most).contains(&met[id]), "{id} was offered {} times", met[id]);
    }
    assert_eq!(sweep.counts().evicted as usize, count(Answer::Evicted));
    let looked = sweep.counts().examined as usize;
    let most = (usize::from(USES_MAX) + 2) * members.len();
    assert!(looked <= most, "looked {looked} times at {} folios", members.len());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whoever_refuses_a_sweep_finds_all_others_and_ends(
        capacity in 1..2000_u64,
        main_fill_percent in 0..=75_u32,
        members in population(),
        batch_max in 1..=16_usize,
    ) {
        let options = S3FifoOptions { main_fill_percent, ..S3FifoOptions::default() };
        let mut policy = S3Fifo::with_options(capacity, options);
        a_sweep_finds_all_that_gives_way(&mut policy, &members, batch_max);
    }
}
