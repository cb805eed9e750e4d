//! Runs the seeds of the fuzz targets in `fuzz/` as regression tests, with the code of the targets,
//! on stable and without a fuzzer.
//!
//! In `fuzz/corpus`, files with a dash in their names are seeds. Other files were written by a
//! fuzzer.

use model::{SITUATIONS, Summary, check, ready, threads};

/// Returns the seeds of a target. Prints the name of each before it is run, so the last name
/// printed is the failed seed.
fn seeds(target: &str) -> impl Iterator<Item = Vec<u8>> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/corpus");
    let folder = std::path::Path::new(folder).join(target);
    let entries = std::fs::read_dir(&folder).expect("cannot read the seeds");
    let mut seeds: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    seeds.retain(|path| path.file_name().is_some_and(|name| name.to_string_lossy().contains('-')));
    seeds.sort();
    assert!(seeds.len() >= 5, "{}: only {} seeds", folder.display(), seeds.len());
    seeds.into_iter().map(|seed| {
        println!("{}", seed.display());
        std::fs::read(&seed).unwrap()
    })
}

/// A change of what the bytes of a script mean may turn its seeds into scripts without effect.
#[test]
fn seeds_of_the_whole_contract() {
    let mut all = Summary::default();
    for seed in seeds("model") {
        let reached = check(&seed).unwrap_or_else(|fault| panic!("{fault}"));
        let acts = ["attached", "order", "read"].map(|what| reached.times([what, ""]));
        assert_ne!(acts, [0; 3], "nothing is attached, and no order and no item is read");
        all.add(&reached);
    }
    let missed = SITUATIONS.iter().filter(|situation| all.times(**situation) == 0);
    assert_eq!(missed.collect::<Vec<_>>(), [&[""; 2]; 0], "no seed reaches these");
}

#[test]
fn seeds_of_the_list_of_woken_slots() {
    seeds("ready").for_each(|seed| ready::run(&seed));
}

#[test]
fn seeds_of_threads() {
    seeds("threads").for_each(|seed| threads::run(&seed));
}
