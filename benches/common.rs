//! Runs the groups of a scenario with criterion.

use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput};
use figures::measure::Group;

/// Benchmarks each group, and drops it before the next is created.
pub(crate) fn bench(groups: impl IntoIterator<Item = Group>) {
    let mut criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(2))
        .configure_from_args();
    for Group { name, contenders } in groups {
        let mut group = criterion.benchmark_group(name);
        for mut contender in contenders {
            group.throughput(Throughput::Elements(contender.items));
            // The scenarios measure the time themselves, without the set-up.
            group.bench_function(BenchmarkId::from_parameter(contender.name), |bencher| {
                bencher.iter_custom(|runs| (0..runs).map(|_| contender.run().elapsed).sum());
            });
        }
        group.finish();
    }
    criterion.final_summary();
}
