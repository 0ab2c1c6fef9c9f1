// This file stands for llama.cpp's libraries. It throws exceptions, and catches those that the program throws through
// it.

#include <stdexcept>
#include <string>

extern "C" void library_throws() {
    throw std::runtime_error("thrown by the library");
}

extern "C" bool library_catches(void (*throws)(), const char * words) {
    try {
        throws();
    } catch (const std::exception & e) {
        return std::string(e.what()) == words;
    }
    return false;
}
