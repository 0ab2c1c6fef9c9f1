# Compiles ggml-cpu.c with the barrier of wait.h. cmake includes this file after ggml's `project()` command
# (CMAKE_PROJECT_ggml_INCLUDE); nothing is written into ggml's own folder.
#
# The barrier's two places are found by their text. Where a llama.cpp has other text, or cmake is older than 3.19,
# ggml's own barrier stays, and AUTOPLACE_WAIT in cmake's cache says so.

set(AUTOPLACE_WAIT OFF CACHE INTERNAL "threads sleep in ggml's barrier")
if (CMAKE_VERSION VERSION_LESS 3.19)
    return()
endif()

set(autoplace_original ${CMAKE_CURRENT_SOURCE_DIR}/src/ggml-cpu/ggml-cpu.c)
set(autoplace_edited ${CMAKE_CURRENT_BINARY_DIR}/autoplace/ggml-cpu.c)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${autoplace_original})

file(READ ${autoplace_original} autoplace_text)
set(autoplace_spin
"    while (atomic_load_explicit(&tp->n_barrier_passed, memory_order_relaxed) == n_passed) {
        ggml_thread_cpu_relax();
    }
")
set(autoplace_last
"        atomic_fetch_add_explicit(&tp->n_barrier_passed, 1, memory_order_seq_cst);
        return;
")
set(autoplace_poll
"    const uint64_t n_rounds = 1024UL * 128 * threadpool->poll;

    for (uint64_t i=0; !ggml_graph_compute_thread_ready(state) && i < n_rounds; i++) {
        // No new work. Keep polling.
        ggml_thread_cpu_relax();
    }
")
set(autoplace_barrier "void ggml_barrier(struct ggml_threadpool * tp) {")
foreach (autoplace_place spin last poll barrier)
    string(FIND "${autoplace_text}" "${autoplace_${autoplace_place}}" autoplace_at)
    if (autoplace_at EQUAL -1)
        message(WARNING "ggml-cpu.c has another barrier than wait.cmake knows: threads that wait will spin")
        return()
    endif()
endforeach()
string(REPLACE "${autoplace_spin}" "    autoplace_wait(&tp->n_barrier_passed, n_passed, tp->poll);\n" autoplace_text "${autoplace_text}")
string(REPLACE "${autoplace_last}"
"        atomic_fetch_add_explicit(&tp->n_barrier_passed, 1, memory_order_seq_cst);
        autoplace_wake(&tp->n_barrier_passed);
        return;
" autoplace_text "${autoplace_text}")
string(REPLACE "${autoplace_poll}"
"    const int64_t begin = ggml_time_us();
    for (int i = 1; !ggml_graph_compute_thread_ready(state); ++i) {
        if (i % AUTOPLACE_LOOKS == 0 && ggml_time_us() - begin >= AUTOPLACE_POLL_US * (int64_t) threadpool->poll) {
            break;
        }
        ggml_thread_cpu_relax();
    }
" autoplace_text "${autoplace_text}")
string(REPLACE "${autoplace_barrier}" "#include \"${CMAKE_CURRENT_LIST_DIR}/wait.h\"\n\n${autoplace_barrier}"
    autoplace_text "${autoplace_text}")
# Assertions name the file that they are in: ggml's own, whatever folder this is built in.
set(autoplace_text "#line 1 \"${autoplace_original}\"\n${autoplace_text}")
# An unchanged file keeps its time, so that nothing is compiled again.
set(autoplace_before "")
if (EXISTS ${autoplace_edited})
    file(READ ${autoplace_edited} autoplace_before)
endif()
if (NOT autoplace_before STREQUAL autoplace_text)
    file(WRITE ${autoplace_edited} "${autoplace_text}")
endif()
set(AUTOPLACE_WAIT ON CACHE INTERNAL "threads sleep in ggml's barrier")

# ggml has one target for the CPU, or one for each variant of it.
function(autoplace_replace_source)
    get_property(targets DIRECTORY src PROPERTY BUILDSYSTEM_TARGETS)
    foreach (target ${targets})
        get_target_property(sources ${target} SOURCES)
        list(FIND sources ggml-cpu/ggml-cpu.c at)
        if (NOT at EQUAL -1)
            list(TRANSFORM sources REPLACE "^ggml-cpu/ggml-cpu\\.c$" "${autoplace_edited}")
            set_property(TARGET ${target} PROPERTY SOURCES ${sources})
        endif()
    endforeach()
endfunction()
cmake_language(DEFER CALL autoplace_replace_source)
