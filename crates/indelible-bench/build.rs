//! Compiles the shim for the R-tree of Boost.Geometry, if the feature `boost` is on. Does nothing otherwise.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "boost")]
    compile_boost();
}

#[cfg(feature = "boost")]
fn compile_boost() {
    const SHIM: &str = "src/contestants/points/boost.cpp";
    println!("cargo::rerun-if-changed={SHIM}");
    let mut build = cc::Build::new();
    build.cpp(true).std("c++17").file(SHIM);
    // Boost checks much in builds with assertions, and its headers have warnings of their own.
    build.define("NDEBUG", None).warnings(false);
    build.define("BOOST_ALLOW_DEPRECATED_HEADERS", None);
    if let Err(error) = build.try_compile("indelible_boost") {
        println!(
            "cargo::error=the feature `boost` needs a C++17 compiler and the headers of Boost.Geometry \
             (Debian: g++ and libboost-dev; headers elsewhere are found by CPLUS_INCLUDE_PATH): {error}"
        );
    }
}
