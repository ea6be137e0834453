mod scheduling;
