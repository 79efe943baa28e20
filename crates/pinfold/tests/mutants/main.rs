//! The stress's mutants: the shipped code with one mutant on, which the stress has to notice.
//!
//! Each runs in a process of its own, since a mutant is on in all of it and may end it in any way;
//! it runs until it is caught, in runs of some seconds, for five minutes at most. Threads are held
//! up now and then between the steps of the protocols (`mutant::pause`), with a mutant or without.
//! `cargo test -p pinfold --features mutants --test mutants` tries one mutant a protocol; with
//! `-- --ignored every_mutant` all of them, which takes minutes.
//!
//! With them are the tests of other programs that have mutants of their own, as this is the one
//! program that is built with mutants.

use std::time::{Duration, Instant};

use pinfold::mutants::Named;
use pinfold_testing::stress::{Options, Schedule, run};

#[path = "../support/again.rs"]
mod again;
#[path = "../support/caught.rs"]
mod caught;
mod crash;
#[path = "../it/foreign.rs"]
mod foreign;
#[path = "../it/objections.rs"]
mod objections;
#[path = "../it/write.rs"]
mod write;

use again::again;

const LIMIT: Duration = Duration::from_secs(300);
/// Bytes of something else, or not as many as there are.
const WRONG: &[&str] = &["wrong byte at", "and got"];
const ASLEEP: &[&str] = &["has not got on for"];
/// Assertions of a debug build meet these before a reader does.
const CONFUSED: &[&str] = &["wrong byte at", "and got", "panicked"];

/// Messages when bytes change under a reader in place, or a borrow is not counted.
const HELD: &[&str] = &["wrong byte at", "and got", "changed", "should not have", "panicked"];

/// Each mutant that the stress sees, in which schedule, and what it says of it.
const CAUGHT: &[(&str, Schedule, &[&str])] = &[
    ("land-unclipped", Schedule::Resizing, WRONG),
    ("any-identity", Schedule::Resizing, WRONG),
    ("no-last-look", Schedule::Moving, WRONG),
    // Nearly always a read that gets fewer bytes than there are. It takes guards of folios that are
    // being filled, too, whose bytes may change under the guard.
    ("counted-blindly", Schedule::Resizing, HELD),
    ("freeze-stays-even", Schedule::Moving, CONFUSED),
    ("freeze-any-count", Schedule::Mixed, CONFUSED),
    ("land-blindly", Schedule::Resizing, CONFUSED),
    ("retire-unchecked", Schedule::Reopening, &["are left in it"]),
    ("wake-first", Schedule::Resizing, ASLEEP),
    ("wake-unlocked", Schedule::Moving, ASLEEP),
    ("leave-unlocked", Schedule::Resizing, ASLEEP),
    ("later-forgotten", Schedule::Mixed, ASLEEP),
    ("move-wakes-nobody", Schedule::Moving, ASLEEP),
    ("even-before-read", Schedule::Mixed, WRONG),
    ("invalidate-nothing", Schedule::Mixed, WRONG),
    ("keep-old-end", Schedule::Resizing, WRONG),
    ("keep-old-slots", Schedule::Mixed, CONFUSED),
    ("insert-blindly", Schedule::Mixed, CONFUSED),
    ("no-scan", Schedule::Mixed, HELD),
    ("gone-at-once", Schedule::Mixed, HELD),
    ("recall-blindly", Schedule::Mixed, HELD),
    ("freeze-pinned", Schedule::Mixed, HELD),
    ("drop-pins", Schedule::Mixed, HELD),
    ("open-uncompared", Schedule::Foreign, WRONG),
    ("grown-uncompared", Schedule::Foreign, WRONG),
    ("grown-on-the-way", Schedule::Foreign, WRONG),
    ("dirt-unmarked", Schedule::Writing, WRONG),
    ("redirt-lost", Schedule::Writing, WRONG),
    ("lose-dirty", Schedule::Writing, WRONG),
    ("failed-stays-written", Schedule::Writing, WRONG),
    ("write-under-borrow", Schedule::Writing, HELD),
    ("served-fails", Schedule::Mapping, &["the map knows of no failure"]),
];

/// One mutant of each protocol that the stress sees: those of `CAUGHT` that are caught soonest.
const ONE_OF_EACH: &[(&str, &str)] = &[
    ("short reads", "no-last-look"),
    ("identities", "any-identity"),
    ("references", "counted-blindly"),
    ("freezing", "freeze-any-count"),
    ("fills", "land-blindly"),
    ("lengths", "land-unclipped"),
    ("waking", "wake-unlocked"),
    ("moves", "move-wakes-nobody"),
    ("reopening", "retire-unchecked"),
    ("invalidation", "invalidate-nothing"),
    ("writing", "dirt-unmarked"),
    ("the index", "insert-blindly"),
    ("borrows", "no-scan"),
    ("pins", "drop-pins"),
    ("changes by others", "open-uncompared"),
    ("maps", "served-fails"),
];

/// Those that it cannot see, and why; the models and the index's own tests do.
const UNSEEN: &[(&str, &str)] = &[
    ("next-turn-unwoken", "it was not tried; the models see it"),
    ("one-shares-turn", "it was not tried; the models see it"),
    ("counted-before-slots", "it was not tried; the models see it"),
    ("change-unnoted", "it was not tried; `crash` sees it, and `write`"),
    ("change-pinned-any-count", "it was not tried; the models see it, and `write`"),
    ("pinned-wakes-nobody", "it was not tried; the models see it"),
    ("sync-failed-is-clean", "sources here lose nothing when a sync fails; `write` sees it"),
    ("borrow-by-count", "met in less than a minute seldom; `write` and the models see it"),
    ("old-goes-late", "nobody here asks whether a guard is current; the models see it"),
    ("sync-of-others", "nobody here looks at the source after a sync; `write` sees it"),
    ("copy-undirtied", "it was not tried; `crash` sees it"),
    ("made-undirtied", "it was not tried; `crash` sees it"),
    ("write-error-unsaid", "it was not tried; `crash` sees it"),
    ("sync-only-writes", "it was not tried; `crash` sees it"),
    ("syncs-first", "it was not tried; `crash` sees it"),
    ("clean-early", "it was not tried; `crash` sees it"),
    ("tail-forgotten", "it was not tried; `crash` sees it"),
    ("tail-uncut", "it was not tried; `crash` sees it"),
    ("cut-keeps-source", "it was not tried; `crash` sees it"),
    ("cut-keeps-bytes", "it was not tried; `crash` sees it"),
    ("resize-is-durable", "it was not tried; `crash` sees it"),
    ("range-cut-short", "it was not tried; `crash` sees it"),
    ("range-is-all", "nobody here syncs ranges; `write` sees it"),
    ("hung-sync-awaited", "no source here hangs; the tests of `write` see it"),
    ("hole-late", "nobody here punches holes; `crash` sees it"),
    ("hole-takes-no-turn", "nobody here punches holes; `write` sees it"),
    ("hole-unguarded", "nobody here punches holes; `write` sees it"),
    ("publish-relaxed", "x86-64 reorders no stores"),
    ("fault-any-range", "it was not tried; the models see it"),
    ("fault-any-generation", "it was not tried; the models see it"),
    ("fault-generation-early", "it was not tried; the models see it"),
    ("fault-looks-unlocked", "it was not tried; the models see it"),
    ("fault-shares-nothing", "it was not tried; the models see it"),
    ("unmap-releases-first", "it was not tried; the models see it"),
    ("claim-blindly", "it was not tried; the models see it"),
    ("lend-blindly", "it was not tried; the models see it"),
    ("lend-gone", "it was not tried; the models see it"),
    ("lender-keeps-pages", "it was not tried; the models see it"),
    ("leaves-unowned", "it was not tried; the models see it"),
    ("leftover-forgotten", "it was not tried; the models see it"),
    ("left-over-awaited", "guards go before who waits gives up; the tests of `space` see it"),
    ("leftover-disowns-first", "it was not tried; the models see it"),
    ("evict-keeps-pages", "it was not tried; the models see it"),
    ("move-keeps-pages", "it was not tried; the models see it"),
    ("settles-at-once", "it was not tried; the models see it"),
    ("recent-stays", "it was not tried; the models see it"),
    ("recent-unchecked", "it was not tried; the models see it"),
    ("copy-by-write", "nothing here is swapped out; the tests of `mirror` see it"),
    ("joins-over-others", "it was not tried; the tests of `mirror` see it"),
    ("splits-huge", "no cache here has folios of 2 MiB; the tests of `lend` see it"),
    ("move-forgets-huge", "as `splits-huge`"),
    ("mapped-again-forgotten", "nothing is wrong; the tests of `reclaim` see it"),
    ("holds-nothing", "the stress holds nothing of maps; the tests of `space` see it"),
    ("map-beyond-mirror", "a file is seldom cut just then; the tests of `space` see it"),
    ("held-is-poisoned", "it was not tried; a test of its own sees it"),
    ("poison-unlocked", "no map goes while a page fails here; the tests of `space` see it"),
    ("length-before-maps", "zeros are taken for a file's end here; the tests of `space` see it"),
    ("unmaps-unsaid", "it was not tried; the tests of `reclaim` see it"),
    ("take-back-any-run", "an assertion meets it, seldom; the tests of `reclaim` see it"),
    ("large-evict-first", "less is cached, which is no error; the test of `reclaim` sees it"),
    ("used-keep-runs", "less is cached, which is no error; the tests of `frames` see it"),
    ("used-stays-unhollow", "less can be mapped, which is no error; the test of `lent.rs` sees it"),
    ("in-use-tried", "less can be mapped, which is no error; the test of `lent.rs` sees it"),
    ("hollow-out-used", "the budget is exceeded, which nothing here looks at; `frames` tests it"),
    ("huge-beside-hollow", "as `hollow-out-used`"),
    ("takes-all-back", "nobody here stores to own memory; the test of `lent.rs` sees it"),
    ("bring-large-again", "lent memory is seldom in pieces; the tests of `lend` see it"),
    ("lend-wakes-early", "no waker here wants a place; the tests of `lend` see it"),
    ("page-out-held", "nobody here has own memory; the tests of `space` see it"),
    ("page-out-unprotected", "nobody here has own memory; the models see it"),
    ("all-bring-at-once", "to be slow is no error; the tests of `pressure` see it"),
    ("all-wait-with-folios", "there are too few threads; the tests of `lend` see it"),
    ("page-out-unchecked", "nobody here has own memory; the models see it"),
    ("failed-stays-protected", "nobody here has own memory; the models see it"),
    ("slot-freed-early", "nobody here has own memory; the models see it"),
    ("drop-before-written", "nobody here has own memory; the models see it"),
    ("write-forgotten", "nobody here has own memory; the models see it"),
    ("client-any-offset", "nobody here serves other processes; the tests of `clients` see it"),
    ("client-trusts-present", "nobody here serves other processes; the tests of `clients` see it"),
    ("replaced-keeps-grown", "nobody here moves a file that has grown; `foreign` sees it"),
    ("first-unbounded", "no source hangs here for so many threads; the tests of `fill` see it"),
    ("hung-unbounded", "no source hangs here; the tests of `fill` see it"),
    ("unwaited-takes-all", "no source hangs here; the tests of `pressure` see it"),
    ("copy-keeps-turn", "no source hangs here; the tests of `pressure` see it"),
    ("over-stays", "to keep the wrong pages is no error; `sim::against_cache` sees it"),
    ("maps-use-all", "to read too much is no error; the tests of `space` see it"),
    ("holds-whole-folios", "nobody here holds what a cut takes; the tests of `space` see it"),
    ("looks-beyond-end", "nobody here plans a read across a cut; the tests of `space` see it"),
    ("others-end-run", "to read in smaller pieces is no error; the tests of `stream` see it"),
    ("credit-unshared", "to read too much is no error; the tests of `stream` see it"),
    ("part-is-whole", "to read too much is no error; the tests of `frames` see it"),
    ("ahead-takes-all", "nobody here serves other processes; the tests of `clients` see it"),
    ("ahead-uncounted", "nobody here serves other processes; the tests of `clients` see it"),
    ("pieces-of-each", "nobody here serves other processes; the tests of `clients` see it"),
    ("all-reads-begun", "nobody here serves other processes; the tests of `clients` see it"),
    ("outside-at-once", "nobody here serves other processes; the tests of `clients` see it"),
    ("waiting-forgotten", "nobody here serves other processes; the tests of `clients` see it"),
    ("idle-looked-at", "nobody here serves other processes; the tests of `clients` see it"),
    ("client-run-unheld", "nobody here serves other processes; the tests of `clients` see it"),
    ("calls-keep-all", "nobody here serves other processes; the tests of `clients` see it"),
    ("strays-one-by-one", "nobody here makes pages in a mirror; the tests of `mirror` see it"),
    ("mirror-error-poisons", "nobody here serves other processes; the tests of `clients` see it"),
    ("mapped-and-served", "nobody here serves other processes; the tests of `clients` see it"),
    ("events-after-faults", "nobody here serves other processes; the tests of `clients` see it"),
    ("rests-pause", "nobody here serves other processes; the tests of `clients` see it"),
    ("part-uncounted", "nobody here serves other processes; the tests of `clients` see it"),
    ("fails-unasked", "nobody here serves other processes; the tests of `clients` see it"),
    ("short-anew", "nobody here serves other processes; the tests of `clients` see it"),
    ("forked-clients-remove", "nobody here serves other processes; the tests of `clients` see it"),
    ("place-in-queue-stays", "no task is dropped here; the tests of `pressure` see it"),
    ("handler-blocks", "to be slow is no error; the tests of `space` see it"),
    ("look-waits", "nobody here serves other processes; the tests of `lend` see it"),
    ("last-look-unfenced", "x86-64 reorders no loads"),
    ("publish-before-fill", "a reader believes nothing that the index says"),
    ("split-clears-first", "a reader who misses looks again under the mutex"),
    ("replace-clears-first", "a reader who misses looks again under the mutex"),
    ("mark-stays-low", "nothing is dirty yet"),
    ("shrink-drops-marks", "nothing is dirty yet"),
    ("leak-nodes", "it takes more nodes than a short run has"),
    ("directory-stays", "readers find by the tree what the directory does not know"),
    ("directory-grows-empty", "readers find by the tree what the directory does not know"),
    ("old-directory-stays", "readers find by the tree what the directory does not know"),
    ("bound-relaxed", "x86-64 reorders no stores"),
    ("length-first", "nobody here knows which of two lengths a reader had seen before"),
    ("revoke-unfrozen", "nobody here adds up what guards keep; the models see it"),
    ("admit-blindly", "nobody here adds up what guards keep; the models see it"),
    ("announce-late", "the window is a few instructions wide, and the models see it"),
    ("announce-unfenced", "membarrier(2) is the fence"),
    ("batch-fenced-first", "membarrier(2) is the fence"),
    ("groups-wait", "somebody always frees something; the models see it"),
    ("queue-forgotten", "somebody always frees something; the models see it"),
    ("drop-keeps-claim", "a claim that is not polled grows old; the models see it"),
    (
        "compact-hollow",
        "a run is seldom lent between the choice and the hold; the test of `lent.rs` sees it",
    ),
    ("drop-keeps-turn", "somebody always frees something; the tests of `pressure` see it"),
    ("refused-last", "somebody always frees something; the tests of `pressure` see it"),
    ("newcomer-first", "somebody always frees something; the tests of `pressure` see it"),
    ("absorbs-all", "to be woken late is no error; the tests of `source` see it"),
    ("guard-bytes-unsettled", "a folio stays slow, which is no error; the models see it"),
    ("guard-bytes-loaded", "a folio stays slow, which is no error; the models see it"),
    ("batch-keeps-guards", "somebody always frees something; the tests of `futures` see it"),
    ("vain-keeps-claim", "somebody always frees something; the tests of `futures` see it"),
    ("retreat-keeps-claim", "batches seldom step back here; the models see it"),
    ("retreat-uncounted", "batches seldom step back here; the models see it"),
    ("retreat-loses-turn", "batches seldom step back here; the models see it"),
    ("all-keep-guards", "batches seldom step back here; the models see it"),
    ("unpolled-keeps-guards", "whatever is woken here is polled; the tests of `futures` see it"),
    ("passed-over-keeps-guards", "batches seldom step back here; the models see it"),
    ("refused-keeps-guards", "batches seldom step back here; the tests of `futures` see it"),
    ("batch-stays-queued", "a turn that nobody takes is passed over; the models see it"),
    ("drop-keeps-waker", "to be woken in vain is no error; the tests of `wait` see it"),
    ("land-in-turn", "a ring mostly ends reads in their order; the tests of `source` see it"),
    ("short-is-whole", "files read no less than was asked for; the tests of `source` see it"),
    ("ahead-waits", "to wait long is no error; the tests of `source` see it"),
    ("further-unseen", "no batch here has more than 16 pages; the models see it"),
    ("event-unwritten", "nobody here has an event loop; the tests of `completions` see it"),
    ("clear-relaxed", "x86-64 reorders no stores"),
    ("never-alone", "an error is an error here, whoever's it is; the tests of `fill` see it"),
    ("alone-though-it-hangs", "to wait long is no error; the tests of `fill` see it"),
    ("batch-error-unshared", "nobody here reads what fails late; the tests of `fill` see it"),
    ("batch-forgotten", "nobody here gives a read up; the tests of `fill` see it"),
    ("collect-unfenced", "nobody takes membarrier(2) away; the registry's tests see it"),
    (
        "occupied-wakes-nobody",
        "a reader would have to sleep through an eviction; the models see it",
    ),
    ("upgrade-unannounced", "met in one run of two only, and always in the models"),
    ("scan-unfenced", "membarrier(2) is the fence"),
    ("leave-relaxed", "x86-64 reorders no stores"),
    ("register-late", "it was not tried; the models see it"),
    ("leave-by-number", "it was not tried; the models see it"),
    ("current-blindly", "nobody here asks whether a guard is current"),
    ("pin-blindly", "it was not tried; the models see it"),
    ("split-shares-pin", "nobody here cuts a range inside a page"),
    ("pin-moved-late", "it was not tried; the models see it"),
    ("hand-out-unfenced", "x86-64 reorders no stores"),
    ("span-unfenced", "x86-64 reorders no stores"),
    ("store-unfenced", "x86-64 reorders no stores"),
    ("refill-unfenced", "x86-64 reorders no stores"),
    ("sleep-until-woken", "somebody always frees something; the models see it"),
    ("forget-unsubmitted", "it was not tried; the models see it"),
    ("batch-unordered", "it was not tried; the models see it"),
    ("hold-leaks", "a run that is not made whole is no error; the models see it"),
    ("ghosts-forgotten", "it was not tried; a test of its own sees it"),
    ("parts-unsplit", "it was not tried; a test of its own sees it"),
    ("first-read-uses", "it was not tried; a test of its own sees it"),
    ("open-trusts-grown", "it was not tried; a test of its own sees it"),
    ("copy-uncounted", "it was not tried; a test of its own sees it"),
    ("keep-blindly", "it was not tried; a test of its own sees it"),
    ("copy-before-all", "it was not tried; a test of its own sees it"),
    ("copy-among-movable", "it was not tried; a test of its own sees it"),
    ("unpolled-keeps-claim", "it was not tried; a test of its own sees it"),
    ("passed-over-first", "it was not tried; a test of its own sees it"),
    ("passes-over-singly", "to be slow is no error; the tests of `pressure` see it"),
    ("touches-in-turn", "it was not tried; a test of its own sees it"),
    ("vain-is-free", "it was not tried; a test of its own sees it"),
    ("skipped-is-used", "it was not tried; a test of its own sees it"),
    ("lost-keeps-window", "it was not tried; a test of its own sees it"),
    ("around-blindly", "it was not tried; a test of its own sees it"),
    ("evicts-first", "it was not tried; a test of its own sees it"),
    ("dirty-stays", "it was not tried; a test of its own sees it"),
    ("protection-trusted", "it was not tried; a test of its own sees it"),
    ("merged-again", "it was not tried; a test of its own sees it"),
    ("loss-forgotten", "it was not tried; a test of its own sees it"),
    ("turn-without-end", "it was not tried; a test of its own sees it"),
    ("reads-forgotten", "it was not tried; a test of its own sees it"),
    ("ahead-of-the-gone", "it was not tried; a test of its own sees it"),
    ("dead-is-served", "it was not tried; a test of its own sees it"),
    ("rest-forgotten", "nobody here serves other processes; `serve_fuzz` sees it"),
    ("unmapped-stays", "nobody here serves other processes; `serve_fuzz` sees it"),
    ("left-keeps-descriptor", "nobody here serves other processes; `serve_fuzz` sees it"),
    ("rests-without-end", "it was not tried; a test of its own sees it"),
    ("evictors-write", "it was not tried; a test of its own sees it"),
    ("evictors-awaited", "it was not tried; a test of its own sees it"),
    ("stuck-stays-first", "it was not tried; a test of its own sees it"),
    ("sealed-leaves", "nothing is sealed here; the models see it"),
    ("protected-for-good", "no call is refused here; the models see it"),
];

/// Runs in the child: until it is caught, or the limit; then the exit code is 0.
#[test]
#[ignore = "one process of the other tests"]
fn child() {
    let number = |name| std::env::var(name).map_or(0, |text| text.parse().expect("a number"));
    let (_, schedule, _) = CAUGHT[number("PINFOLD_STRESS_MUTANT_SCHEDULE") as usize];
    let mutant = std::env::var("PINFOLD_STRESS_MUTANT").ok();
    let broken = mutant.is_some();
    Named::switch_on(mutant.map(|name| Named::find(&name).expect("a mutant's name")));
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (since, limit) =
        (Instant::now(), Duration::from_secs(number("PINFOLD_STRESS_MUTANT_SECONDS")));
    let mut options = Options::new(dir.path());
    options.schedule = schedule;
    options.time = Duration::from_secs(3);
    if schedule == Schedule::Mapping {
        options.budget_bytes = 16 << 20; // maps want more than 8
    }
    // Of a mutant a hang is what is looked for. Without one, a machine that has other things to do
    // must not look like one.
    options.hang = Duration::from_secs(if broken { 4 } else { 60 });
    let code = loop {
        match run(options.clone(), |_| {}) {
            Ok(report) => println!("{report}"),
            Err(failure) => {
                println!("after {:?}: {failure}", since.elapsed());
                break 1;
            }
        }
        if since.elapsed() >= limit {
            break 0;
        }
        options.seed += 1;
    };
    drop(dir);
    // Some of its threads may hang.
    std::process::exit(code);
}

/// What a process says in which `mutant` is on; an error if it ends well.
fn stress(mutant: Option<&str>, schedule: usize, limit: Duration) -> (bool, String) {
    let mut command = again(module_path!(), "child");
    command
        .arg("--ignored")
        .env("PINFOLD_STRESS_MUTANT_SCHEDULE", schedule.to_string())
        .env("PINFOLD_STRESS_MUTANT_SECONDS", limit.as_secs().to_string());
    if let Some(mutant) = mutant {
        command.env("PINFOLD_STRESS_MUTANT", mutant);
    }
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), format!("{} ({})", String::from_utf8_lossy(&text), output.status))
}

#[test]
fn without_a_mutant_all_holds() {
    let mut seen: Vec<Schedule> = Vec::new();
    for (n, (_, schedule, _)) in CAUGHT.iter().enumerate() {
        if !seen.contains(schedule) {
            seen.push(*schedule);
            let (well, said) = stress(None, n, Duration::ZERO);
            assert!(well, "{schedule:?}: {said}");
        }
    }
}

#[test]
fn a_mutant_of_each_protocol_is_caught() {
    for (protocol, mutant) in ONE_OF_EACH {
        let n = CAUGHT.iter().position(|(name, ..)| name == mutant);
        println!("{protocol}:");
        is_caught(n.unwrap_or_else(|| panic!("{protocol}: the stress does not see {mutant}")));
    }
}

#[test]
#[ignore = "takes minutes; `cargo xtask test --full` runs it"]
fn every_mutant_is_caught() {
    (0..CAUGHT.len()).for_each(is_caught);
}

/// The mutant that stands there in `CAUGHT`.
fn is_caught(n: usize) {
    let (name, schedule, reasons) = CAUGHT[n];
    let (well, said) = stress(Some(name), n, LIMIT);
    assert!(!well, "{name} was not caught ({schedule:?}): {said}");
    let told = reasons.iter().any(|reason| said.contains(reason));
    assert!(told, "{name} was caught for another reason: {said}");
    let when = said.lines().find(|line| line.starts_with("after ")).unwrap_or("it broke down");
    println!("{name}: {}", when.split(": ").next().unwrap_or_default());
}

#[test]
fn no_mutant_is_forgotten() {
    let listed = |name: &str| {
        CAUGHT.iter().any(|(caught, ..)| *caught == name)
            || UNSEEN.iter().any(|(unseen, _)| *unseen == name)
    };
    let forgotten: Vec<_> = Named::all().map(Named::name).filter(|name| !listed(name)).collect();
    assert!(forgotten.is_empty(), "caught by the stress or not? {forgotten:?}");
    assert_eq!(
        Named::all().count(),
        CAUGHT.len() + UNSEEN.len(),
        "one is listed twice, or is gone"
    );
}
