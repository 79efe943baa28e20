//! An explicit-state search over the shipped count: three actors do any legal operation, for as
//! long as they like, on a word narrow enough that every limit is reached. Sequentially
//! consistent, one access at a time; `loom.rs` has the memory orderings.
//!
//! `PINFOLD_EXPLORE_DEEP=1` widens the words (minutes instead of seconds).

mod support;

use std::fmt::Debug;
use std::hash::Hash;
use std::marker::PhantomData;

use pinfold_refcount::atomic::AtomicWord;
use pinfold_refcount::protocol::Protocol;
use pinfold_refcount::rivals::{Counter, SeedFrozen};
use pinfold_refcount::{RefCount, Word};
use stateright::{Checker, HasDiscoveries, Model, Property};
use support::mutants::{EverybodyWins, Narrow, NeverUpdates, ThawAdds, TornSub};
use support::replay::{History, ReplayWord, Run, step};

/// A count under search: its operations on a replayed word, and what its word says.
trait Subject: 'static {
    /// Frozen periods that are distinguished.
    const GENERATIONS: u32;
    /// Winning the zero of another lifetime is wrong if fewer thaws than this lie between.
    const OWN_ZERO_BEFORE: u32;
    /// The most references that may be held, if users have to see to it; else the count does.
    const USERS_LIMIT: Option<u32> = None;
    const CAN_PIN: bool = false;
    const FIRST: u64;
    /// Runs `operation`; a freeze expects `held` references.
    fn run(word: ReplayWord, operation: Operation, held: u32) -> bool;
    fn is_frozen(word: u64) -> bool;
    fn is_bare(word: u64) -> bool;
    fn refs(word: u64) -> u32;
    fn pins(_word: u64) -> u32 {
        0
    }
}

fn run(count: &impl Counter, operation: Operation, held: u32) -> bool {
    match operation {
        Operation::TryGet => count.try_get(),
        Operation::Put => count.put(),
        Operation::Freeze => count.freeze(held),
        Operation::Thaw => {
            count.thaw(1);
            true
        }
        Operation::TryPin | Operation::Unpin => unreachable!("not of every count"),
    }
}

/// The shipped count of protocol `P`; `W` is the word itself, or a mutant's wrapper. Lifetimes as
/// many apart as there are generations look the same to it, and are taken for the same when only
/// what is `TOLD_APART` is asked for.
struct Shipped<P, W = ReplayWord, const TOLD_APART: bool = true>(PhantomData<fn() -> (P, W)>);

impl<P, W, const TOLD_APART: bool> Subject for Shipped<P, W, TOLD_APART>
where
    P: Protocol,
    W: From<ReplayWord> + AtomicWord<u64> + 'static,
{
    const OWN_ZERO_BEFORE: u32 =
        if TOLD_APART && Self::GENERATIONS > 0 { Self::GENERATIONS } else { u32::MAX };
    const GENERATIONS: u32 = (1 << P::GENERATION_BITS) - 1;
    const CAN_PIN: bool = P::PINS_BITS > 0;
    // Frozen, generation 1.
    const FIRST: u64 =
        (1 << 63) | if P::GENERATION_BITS == 0 { 0 } else { 1 << (63 - P::GENERATION_BITS) };
    fn run(word: ReplayWord, operation: Operation, held: u32) -> bool {
        let count = RefCount::<P, W>::on(W::from(word));
        match operation {
            Operation::TryPin => count.try_pin(1).is_ok(),
            Operation::Unpin => count.unpin(1),
            _ => run(&count, operation, held),
        }
    }
    fn is_frozen(word: u64) -> bool {
        Word::<P>::from_raw(word).is_frozen()
    }
    fn is_bare(word: u64) -> bool {
        Word::<P>::from_raw(word).is_bare()
    }
    fn refs(word: u64) -> u32 {
        Word::<P>::from_raw(word).refs()
    }
    fn pins(word: u64) -> u32 {
        Word::<P>::from_raw(word).pins()
    }
}

/// The seed's count with `BITS` bits.
struct Seed<const BITS: u32, const LOOP: bool>;

impl<const BITS: u32, const LOOP: bool> Subject for Seed<BITS, LOOP> {
    const GENERATIONS: u32 = 0;
    /// It has no answer to different zeros.
    const OWN_ZERO_BEFORE: u32 = 0;
    /// As in the shipped count, half of the range is headroom.
    const USERS_LIMIT: Option<u32> = Some((1 << (BITS - 1)) - 1);
    const FIRST: u64 = 1 << 31;
    fn run(word: ReplayWord, operation: Operation, held: u32) -> bool {
        run(&SeedFrozen::<BITS, LOOP, _>::on(word), operation, held)
    }
    fn is_frozen(word: u64) -> bool {
        word & Self::FIRST != 0
    }
    fn is_bare(word: u64) -> bool {
        word == Self::FIRST
    }
    fn refs(word: u64) -> u32 {
        ((word & !Self::FIRST) >> (31 - BITS)) as u32
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Operation {
    TryGet,
    Put,
    TryPin,
    Unpin,
    /// Expecting just what the actor holds.
    Freeze,
    /// By the party alone, or the one it hands the folio to: a thaw, or a hand-out in a new
    /// lifetime.
    Thaw,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
struct Actor {
    held: u8,
    pinned: u8,
    doing: Option<(Operation, History)>,
    /// For a put that has subtracted: how often the word was thawed since. Saturates at one more
    /// than the generations, which is all that matters.
    thaws: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    word: u64,
    actors: Vec<Actor>,
    /// An actor holds the folio alone: it is frozen and handed on in one step.
    alone: bool,
    /// What went wrong on the way here.
    wrong: Option<String>,
}

struct Search<S> {
    actors: usize,
    subject: PhantomData<fn() -> S>,
}

impl<S: Subject> Search<S> {
    fn held(state: &State) -> u32 {
        state.actors.iter().map(|actor| u32::from(actor.held)).sum()
    }

    fn pinned(state: &State) -> u32 {
        state.actors.iter().map(|actor| u32::from(actor.pinned)).sum()
    }

    /// Makes one access of actor `who`'s operation, and records the result.
    fn step(state: &mut State, who: usize) {
        let (operation, mut history) = state.actors[who].doing.take().expect("the actor is busy");
        let expected = u32::from(state.actors[who].held);
        let run = step(&mut state.word, &mut history, |word| S::run(word, operation, expected));
        match run {
            Run::Paused => state.actors[who].doing = Some((operation, history)),
            Run::Finished(result) => Self::book(state, who, operation, result),
            Run::Panicked(text) => state.wrong = Some(text),
        }
        if state.wrong.is_none() && S::is_frozen(state.word) != state.alone {
            state.wrong = Some(format!("frozen bit against truth: alone is {}", state.alone));
        }
        let quiet = state.actors.iter().all(|actor| actor.doing.is_none());
        if state.wrong.is_none() && quiet {
            state.wrong = Self::wrong_at_rest(state);
        }
    }

    fn book(state: &mut State, who: usize, operation: Operation, result: bool) {
        let wrong = match (operation, result) {
            (Operation::TryGet, true) => {
                state.actors[who].held += 1;
                state.alone.then_some("got a reference to a folio that somebody holds alone")
            }
            (Operation::TryPin, true) => {
                state.actors[who].pinned += 1;
                state.alone.then_some("pinned a folio that somebody holds alone")
            }
            (Operation::Put | Operation::Unpin, true) => {
                let thaws = std::mem::take(&mut state.actors[who].thaws);
                let twice = std::mem::replace(&mut state.alone, true);
                let foreign = thaws > 0 && thaws < S::OWN_ZERO_BEFORE;
                match (twice, foreign) {
                    (true, _) => Some("two destroyers"),
                    (_, true) => Some("won the zero of another lifetime"),
                    _ => None,
                }
            }
            (Operation::Freeze, true) => {
                state.actors[who].held = 0;
                let twice = std::mem::replace(&mut state.alone, true);
                let shared = Self::held(state) + Self::pinned(state) > 0;
                (twice || shared).then_some("froze a folio that somebody else has too")
            }
            (Operation::Thaw, _) => {
                state.actors[who].held += 1;
                state.alone = false;
                let cap = S::GENERATIONS + 1;
                for actor in &mut state.actors {
                    if matches!(&actor.doing, Some((Operation::Put | Operation::Unpin, _))) {
                        actor.thaws = (actor.thaws + 1).min(cap);
                    }
                }
                None
            }
            (Operation::Put | Operation::Unpin, false) => {
                state.actors[who].thaws = 0;
                None
            }
            (_, false) => None,
        };
        if let Some(wrong) = wrong {
            state.wrong = Some(format!("{wrong} (word {:#x})", state.word));
        }
    }

    /// With no operation in progress the word must equal what is held.
    fn wrong_at_rest(state: &State) -> Option<String> {
        let held = (Self::held(state), Self::pinned(state));
        let counted = (S::refs(state.word), S::pins(state.word));
        match (state.alone, held) {
            (true, (0, 0)) if S::is_bare(state.word) => None,
            (true, (0, 0)) => Some("debris left on a frozen word".to_owned()),
            (true, _) => Some("somebody holds a frozen folio".to_owned()),
            (false, (0, 0)) => Some("a stray zero, and nobody to destroy the folio".to_owned()),
            (false, _) if counted == held => None,
            (false, _) => Some(format!("the word says {counted:?}, held are {held:?}")),
        }
    }
}

impl<S: Subject> Model for Search<S> {
    type State = State;
    type Action = (usize, Option<Operation>);

    fn init_states(&self) -> Vec<State> {
        let actors = vec![Actor::default(); self.actors];
        vec![State { word: S::FIRST, actors, alone: true, wrong: None }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Self::Action>) {
        if state.wrong.is_some() {
            return;
        }
        let thawing = |actor: &Actor| matches!(actor.doing, Some((Operation::Thaw, _)));
        let may_thaw = state.alone && !state.actors.iter().any(thawing);
        for (who, actor) in state.actors.iter().enumerate() {
            if actor.doing.is_some() {
                actions.push((who, None));
                continue;
            }
            if S::USERS_LIMIT.is_none_or(|limit| Self::held(state) < limit) {
                actions.push((who, Some(Operation::TryGet)));
            }
            if S::CAN_PIN {
                actions.push((who, Some(Operation::TryPin)));
            }
            if actor.pinned > 0 {
                actions.push((who, Some(Operation::Unpin)));
            }
            if actor.held > 0 {
                actions.push((who, Some(Operation::Put)));
                actions.push((who, Some(Operation::Freeze)));
            }
            if may_thaw {
                actions.push((who, Some(Operation::Thaw)));
            }
        }
    }

    fn next_state(&self, last: &State, (who, begin): Self::Action) -> Option<State> {
        let mut state = last.clone();
        if let Some(operation) = begin {
            state.actors[who].held -= u8::from(operation == Operation::Put);
            state.actors[who].pinned -= u8::from(operation == Operation::Unpin);
            state.actors[who].doing = Some((operation, Vec::new()));
        }
        Self::step(&mut state, who);
        // The order of the actors does not matter.
        state.actors.sort();
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always("right", |_, state: &State| state.wrong.is_none())]
    }
}

/// Searches everything; what went wrong and after how many steps, or the number of states.
fn search<S: Subject>(actors: usize) -> Result<usize, (String, usize)> {
    let checker = Search::<S> { actors, subject: PhantomData }
        .checker()
        .threads(2)
        .finish_when(HasDiscoveries::Any)
        .spawn_bfs()
        .join();
    match checker.discovery("right") {
        None => Ok(checker.unique_state_count()),
        Some(path) => {
            let steps = path.clone().into_actions().len();
            Err((path.last_state().wrong.clone().expect("a state that is wrong"), steps))
        }
    }
}

fn deep() -> bool {
    std::env::var_os("PINFOLD_EXPLORE_DEEP").is_some()
}

fn holds<S: Subject>(actors: usize, name: &str) {
    match search::<S>(actors) {
        Ok(states) => println!("{name}, {actors} actors: holds in all {states} states"),
        Err((wrong, steps)) => panic!("{name}: {wrong}, after {steps} steps"),
    }
}

fn caught<S: Subject>(name: &str, expected: &str) {
    match search::<S>(3) {
        Ok(states) => panic!("{name}: holds, in {states} states, and should not"),
        Err((wrong, steps)) => {
            println!("{name}: {wrong}, after {steps} steps");
            assert!(wrong.contains(expected), "{name} failed by «{wrong}», not «{expected}»");
        }
    }
}

type P = Narrow<2, 0, 3>;

#[test]
fn the_shipped_count_holds() {
    holds::<Shipped<P>>(3, "3 count bits, 2 generation bits");
    holds::<Shipped<Narrow<2, 2, 2>>>(2, "2 count bits, 2 pin bits, 2 generation bits");
    holds::<Shipped<Narrow<2, 3, 3>>>(2, "3 count bits, 3 pin bits, 2 generation bits");
    holds::<Shipped<Narrow<2, 0, 4>>>(3, "4 count bits, 2 generation bits");
    if deep() {
        holds::<Shipped<Narrow<3, 0, 3>>>(3, "3 count bits, 3 generation bits");
        holds::<Shipped<Narrow<2, 3, 3>>>(3, "3 count bits, 3 pin bits, 2 generation bits");
    }
}

#[test]
fn mutants_are_caught() {
    caught::<Shipped<Narrow<0, 0, 3>>>("no generation", "the zero of another lifetime");
    caught::<Shipped<P, NeverUpdates<ReplayWord>>>("no wiping", "debris left");
    caught::<Shipped<P, ThawAdds<ReplayWord, P>>>("thaw adds", "the word says");
    caught::<Shipped<P, TornSub<ReplayWord>>>("a torn subtraction", "");
    caught::<Shipped<P, EverybodyWins<ReplayWord>>>("a swap that always wins", "");
}

/// What the widths are for: a generation of 2 bits comes round after 3 thaws, one of 3 after 7.
#[test]
fn a_generation_comes_round() {
    const ROUND: &str = "the zero of another lifetime";
    caught::<Shipped<Narrow<2, 0, 3>, ReplayWord, false>>("2 generation bits, come round", ROUND);
    if deep() {
        caught::<Shipped<Narrow<3, 0, 3>, ReplayWord, false>>("3 generation bits", ROUND);
    }
}

#[test]
fn the_wiping_loop_keeps_debris_from_the_top() {
    holds::<Seed<3, true>>(3, "the seed's count, wiping in a loop");
    caught::<Seed<3, false>>(
        "the seed's count, one best-effort swap",
        "got a reference to a folio",
    );
    caught::<Seed<4, false>>("the same with 4 count bits", "got a reference to a folio");
}
