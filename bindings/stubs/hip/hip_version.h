/* Stand-in for the HIP header of the same name. The vendor's headers include it for the library's
   own sources, and take nothing from it. */
